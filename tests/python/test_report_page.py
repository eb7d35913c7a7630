"""The report page: complete, self-contained, and safe with any name; tests/export looks at it in a browser."""

import json
import math
from html.parser import HTMLParser

import jsonschema
import onnx
import pytest

import normfuse
from normfuse.cli.schema import json_schema
from normfuse.models import diffusion_resblock, transformer_encoder
from normfuse.reports.files import finite, json_text
from normfuse.reports.page import html_text

EVIL = "<script>alert('1')</script>&\""
_VOID = {"meta", "br", "rect", "path"}


class _Outline(HTMLParser):
    """Checks that tags are balanced, and collects what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.text += data


def report_of(model: onnx.ModelProto) -> dict:
    report = normfuse.optimize(model).report.to_dict()
    jsonschema.validate(finite(report), json_schema("report"))
    return report


@pytest.fixture(scope="module")
def quantized() -> dict:
    return report_of(transformer_encoder(layers=2, hidden=32, quantized=True))


def test_everything_in_the_report_is_on_the_page(quantized: dict) -> None:
    page = _Outline(html_text(quantized))
    for site in quantized["sites"]:
        assert site["name"] in page.text
        assert site["message"] in page.text
        assert site["advice"] in page.text
    before, after = quantized["operators_before"], quantized["operators_after"]
    for name in {*before, *after}:
        if "::" not in name and before.get(name, 0) != after.get(name, 0):
            assert f"{name}{before.get(name, 0)}{after.get(name, 0)}" in page.text
    # The functions that stand for one operator are counted as that one.
    ours = sum(count for name, count in after.items() if name.startswith("ai.normfuse::FusedNormalization_"))
    assert ours > 1
    assert f"ai.normfuse::FusedNormalization0{ours}+{ours}" in page.text
    for run in quantized["verification"]["runs"]:
        assert run["name"] in page.text
    for rule in quantized["rules"]:
        assert rule in page.text


def test_drawings_show_the_nodes_that_were_there(quantized: dict) -> None:
    fused = [site for site in quantized["sites"] if site["fused_into"]]
    assert sum(example["count"] for example in quantized["examples"]) == len(fused)
    by_name = {site["name"]: site for site in fused}
    for example in quantized["examples"]:
        assert len(example["nodes"]) == len(by_name[example["site"]]["nodes"])
        for index, node in enumerate(example["nodes"]):
            assert all(source < index for source in node["inputs"])
    layer_norm = next(e for e in quantized["examples"] if "LayerNormalization" in e["description"])
    operators = [node["op_type"] for node in layer_norm["nodes"]]
    subtract, divide = operators.index("Sub"), operators.index("Div")
    assert {"ReduceMean", "Sub", "Pow", "Sqrt", "Div"} <= set(operators)
    assert subtract in layer_norm["nodes"][divide]["inputs"]
    svgs = [attributes for tag, attributes in _Outline(html_text(quantized)).tags if tag == "svg"]
    assert len(svgs) == 2 * len(quantized["examples"])
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in svgs)


def test_nothing_is_loaded_and_nothing_runs(quantized: dict) -> None:
    text = html_text(quantized)
    page = _Outline(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        assert attributes.get("href", "#").startswith("#")


def test_links_lead_somewhere_and_tables_say_what_they_are(quantized: dict) -> None:
    page = _Outline(html_text(quantized))
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {attributes["href"][1:] for tag, attributes in page.tags if tag == "a"} <= anchors
    count = sum(tag == "table" for tag, _ in page.tags)
    assert count == sum(tag == "caption" for tag, _ in page.tags) >= 5
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.tags if tag == "th")


def test_names_cannot_break_the_page() -> None:
    model = diffusion_resblock()
    for node in model.graph.node:
        node.name = f"{EVIL}{node.name or node.output[0]}"
    page = _Outline(html_text(report_of(model) | {"model": "/models/<b>&.onnx"}))
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert EVIL in page.text
    assert "<b>&.onnx" in page.text


def test_json_has_no_infinity() -> None:
    assert json.loads(json_text({"bounds": [math.inf, -math.inf, math.nan]})) == {"bounds": ["inf", "-inf", "nan"]}


def test_tuning_is_on_the_page(quantized: dict) -> None:
    assert "Not tuned" in _Outline(html_text(quantized)).text
    ratio = {"median": 1.25, "low": 1.2, "high": 1.375, "error": 0.01}
    group = {"group": EVIL, "sites": 7, "on": False, "by_cost_model": True, "gain": 0.9, "error": 0.01}
    groups = [group, group | {"group": "rest", "gain": None, "error": None}]
    tuning = {"isa": "avx2", "onnxruntime": "1.31.1", "threads": 0, "written": "rewritten", "groups": groups}
    tuning |= {"starts": {"off": ratio, "cost": ratio, "on": ratio}, "original_again": ratio, "speedup": ratio}
    page = _Outline(html_text(quantized | {"tuning": tuning}))
    for words in (f"{EVIL}7offon0.9000.010", "rest7offonnot measured", "rewritten1.2501.200 to 1.375", "threads: all"):
        assert words in page.text


def test_a_model_without_sites() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] X) => (float[2] Y) { Y = Add(X, X) }'
    assert "0 of 0" in _Outline(html_text(report_of(onnx.parser.parse_model(text)))).text
