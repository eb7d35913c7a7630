// Matrix products.
#include <algorithm>
#include <functional>

#include "directml/islands/einsum.h"
#include "directml/islands/operators.h"

namespace normfuse::directml {

using namespace abi;

namespace {

// Batches of both operands over the same dimensions, and the strides of each.
struct Batches {
  Dims sizes, a, b;
};

Batches Merged(const Dims& sizes, const StridedView& a, const StridedView& b) {
  Batches merged;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    if (!merged.sizes.empty() && merged.a.back() == a.strides[i] * sizes[i] &&
        merged.b.back() == b.strides[i] * sizes[i]) {
      merged.sizes.back() *= sizes[i];
      merged.a.back() = a.strides[i];
      merged.b.back() = b.strides[i];
    } else {
      merged.sizes.push_back(sizes[i]);
      merged.a.push_back(a.strides[i]);
      merged.b.push_back(b.strides[i]);
    }
  }
  return merged;
}

// A kind of product: its operator, what it gives, and what it reads beside A and B.
struct ProductKind {
  Operator op;
  DataType type;
  std::function<std::vector<std::optional<ExactView>>(const ExactView& a, const ExactView& b)> operands;
};

ProductKind RealProduct(NodeLowering& node) {
  return {OpOf(DML_OPERATOR_GEMM, node.name()), DataType::kFloat32, [](const ExactView& a, const ExactView& b) {
            return std::vector<std::optional<ExactView>>{a, b, std::nullopt};
          }};
}

Tensor ProductOf(NodeLowering& node, Tensor a, Tensor b, const Dims& batch, const ProductKind& kind) {
  const auto with_matrix = [&](const Tensor& tensor) {
    Dims dims = batch;
    dims.insert(dims.end(), tensor.view.dims.end() - 2, tensor.view.dims.end());
    return dims;
  };
  const Dims a_dims = with_matrix(a), b_dims = with_matrix(b);
  int64_t rows = *(a_dims.end() - 2);
  const int64_t inner = a_dims.back(), columns = b_dims.back();
  StridedView a_view = Expanded(a.view, a_dims), b_view = Expanded(b.view, b_dims);
  Batches batches = Merged(batch, a_view, b_view);
  // One matrix for all batches: their rows are one matrix, too.
  const bool shared = std::all_of(batches.b.begin(), batches.b.end(), [](int64_t stride) { return stride == 0; });
  const auto row_stride = [&] { return *(a_view.strides.end() - 2); };
  if (shared && batches.sizes.size() == 1 && (batches.a[0] == row_stride() * rows || rows == 1)) {
    if (rows == 1) *(a_view.strides.end() - 2) = batches.a[0];
    rows *= batches.sizes[0];
    batches = {};
  }
  if (batches.sizes.size() > 2) {
    a.view = a_view;
    b.view = b_view;
    a = node.Packed(a);
    b = node.Packed(b);
    a_view = StridedView::Packed(a_dims);
    b_view = StridedView::Packed(b_dims);
    batches = Merged(batch, a_view, b_view);
  }
  for (Dims* each : {&batches.sizes, &batches.a, &batches.b}) {
    each->insert(each->begin(), 2 - each->size(), each == &batches.sizes ? 1 : 0);
  }
  if (node.builder().refused()) return a;
  const auto exact = [&](const Tensor& tensor, const StridedView& view, Dims strides, int64_t m, int64_t n) {
    strides.insert(strides.end(), view.strides.end() - 2, view.strides.end());
    return ExactView{*tensor.value, {batches.sizes[0], batches.sizes[1], m, n}, strides};
  };
  const Dims sizes = {batches.sizes[0], batches.sizes[1], rows, columns};
  node.RefuseSize({inner});
  return node.Made(kind.op, sizes,
                   kind.operands(exact(a, a_view, batches.a, rows, inner), exact(b, b_view, batches.b, inner, columns)),
                   kind.type, {});
}

// Changes the order of dimensions, named by letters.
void Turn(Tensor* tensor, const std::string& from, const std::string& to) {
  StridedView view = tensor->view;
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t at = from.find(to[i]);
    view.dims[i] = tensor->view.dims[at];
    view.strides[i] = tensor->view.strides[at];
  }
  tensor->view = std::move(view);
}

// Where one operand of an Einsum has a dimension of 1 that both have, it repeats along it. A sum gets a copy: a product
// with rows that do not move is none that DirectML is known to have.
void Stretch(NodeLowering& node, const Einsum& sum, Tensor* a, Tensor* b) {
  Dims a_sizes = a->view.dims, b_sizes = b->view.dims;
  const size_t batches = sum.batch.size();
  bool sums = false;
  for (size_t i = 0; i < batches + sum.inner.size(); ++i) {
    int64_t& of_a = a_sizes[i < batches ? i : i + sum.rows.size()];
    int64_t& of_b = b_sizes[i];
    sums = sums || (i >= batches && of_a != of_b);
    if (of_a == 1) of_a = of_b;
    if (of_b == 1) of_b = of_a;
  }
  a->view = Expanded(a->view, a_sizes);
  b->view = Expanded(b->view, b_sizes);
  if (!sums) return;
  *a = node.Packed(*a);
  *b = node.Packed(*b);
}

// The last dimensions as a matrix, without a copy where each side of it is one dimension.
Tensor AsMatrices(NodeLowering& node, Tensor tensor, const Dims& batch, int64_t rows, int64_t columns) {
  const Dims& dims = tensor.view.dims;
  const bool is_matrix = dims.size() == batch.size() + 2 && *(dims.end() - 2) == rows && dims.back() == columns;
  if (is_matrix) return tensor;
  tensor = node.Packed(tensor);
  Dims sizes = batch;
  sizes.push_back(rows);
  sizes.push_back(columns);
  tensor.view = StridedView::Packed(sizes);
  return tensor;
}

}  // namespace

namespace {

// Of matrices, vectors and batches of them.
void LowerProduct(NodeLowering& node, Tensor a, Tensor b, const ProductKind& kind) {
  const bool row = a.view.dims.size() == 1, column = b.view.dims.size() == 1;
  if (a.view.dims.empty() || b.view.dims.empty()) return node.Refuse("a product of scalars");
  if (row) {
    a.view.dims.insert(a.view.dims.begin(), 1);
    a.view.strides.insert(a.view.strides.begin(), 0);
  }
  if (column) {
    b.view.dims.push_back(1);
    b.view.strides.push_back(0);
  }
  const auto batch =
      BroadcastDims(Dims(a.view.dims.begin(), a.view.dims.end() - 2), Dims(b.view.dims.begin(), b.view.dims.end() - 2));
  if (!batch || a.view.dims.back() != *(b.view.dims.end() - 2)) return node.Refuse("shapes that do not fit");
  Tensor result = ProductOf(node, a, b, *batch, kind);
  if (node.builder().refused()) return;
  Dims dims = *batch;
  if (!row) dims.push_back(*(a.view.dims.end() - 2));
  if (!column) dims.push_back(b.view.dims.back());
  result.view = StridedView::Packed(dims);
  node.Give(0, std::move(result));
}

constexpr size_t kRowsAxis = 2, kColumnsAxis = 3, kProductRank = 4;

}  // namespace

void LowerMatMul(NodeLowering& node) { LowerProduct(node, node.Real(0), node.Real(1), RealProduct(node)); }

void LowerMatMulInteger(NodeLowering& node) {
  const auto operands = [&node](const ExactView& a, const ExactView& b) {
    return std::vector<std::optional<ExactView>>{a, ParameterOf(node, 2, kProductRank, kRowsAxis, 1), b,
                                                 ParameterOf(node, 3, kProductRank, kColumnsAxis, b.sizes.back())};
  };
  LowerProduct(node, node.Raw(0), node.Raw(1),
               {OpOf(DML_OPERATOR_MATRIX_MULTIPLY_INTEGER, node.name()), DataType::kInt32, operands});
}

void LowerQLinearMatMul(NodeLowering& node) {
  const auto operands = [&node](const ExactView& a, const ExactView& b) {
    const auto one = [&](size_t input) { return ParameterOf(node, input, kProductRank, kRowsAxis, 1); };
    const auto of_b = [&](size_t input) {
      return ParameterOf(node, input, kProductRank, kColumnsAxis, b.sizes.back());
    };
    return std::vector<std::optional<ExactView>>{a, one(1), one(2), b, of_b(4), of_b(5), one(6), one(7)};
  };
  LowerProduct(node, node.Raw(0), node.Raw(3),
               {OpOf(DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY, node.name()), node.OutputType(0), operands});
}

void LowerGemm(NodeLowering& node) {
  Tensor a = node.Real(0), b = node.Real(1);
  const auto transpose = [](StridedView* view) {
    std::reverse(view->dims.begin(), view->dims.end());
    std::reverse(view->strides.begin(), view->strides.end());
  };
  if (a.view.dims.size() != 2 || b.view.dims.size() != 2) return node.Refuse("matrices of another rank");
  if (node.attributes().Int("transA", 0) != 0) transpose(&a.view);
  if (node.attributes().Int("transB", 0) != 0) transpose(&b.view);
  if (a.view.dims[1] != b.view.dims[0]) return node.Refuse("shapes that do not fit");
  const Dims sizes = {1, 1, a.view.dims[0], b.view.dims[1]};
  node.RefuseSize({sizes[2], sizes[3], a.view.dims[1]});
  std::optional<ExactView> c;
  if (node.Has(2)) {
    const Tensor bias = node.Real(2);
    const auto dims = BroadcastDims(bias.view.dims, {sizes[2], sizes[3]});
    if (!dims || *dims != Dims{sizes[2], sizes[3]}) return node.Refuse("a bias that does not broadcast");
    c = ExactView{*bias.value, sizes, Expanded(bias.view, sizes).strides};
  }
  if (node.builder().refused()) return;
  const auto exact = [](const Tensor& tensor) {
    const StridedView view = Expanded(tensor.view, {1, 1, tensor.view.dims[0], tensor.view.dims[1]});
    return ExactView{*tensor.value, view.dims, view.strides};
  };
  Operator op = OpOf(DML_OPERATOR_GEMM, node.name());
  op.alpha = node.attributes().Float("alpha", 1);
  op.beta = node.attributes().Float("beta", 1);
  node.Give(0, node.Made(std::move(op), sizes, {exact(a), exact(b), c}, DataType::kFloat32, {sizes[2], sizes[3]}));
}

void LowerEinsum(NodeLowering& node) {
  const auto sum = ReadEinsum(node.attributes().String("equation", ""));
  Tensor a = node.Real(0), b = node.Real(1);
  if (!sum || sum->a.size() != a.view.dims.size() || sum->b.size() != b.view.dims.size()) {
    return node.Refuse("an equation that is no matrix product");
  }
  Turn(&a, sum->a, sum->batch + sum->rows + sum->inner);
  Turn(&b, sum->b, sum->batch + sum->inner + sum->columns);
  Stretch(node, *sum, &a, &b);
  const Dims a_sizes = a.view.dims, b_sizes = b.view.dims;
  const auto batch_count = static_cast<int64_t>(sum->batch.size());
  const Dims batch(a_sizes.begin(), a_sizes.begin() + batch_count);
  const Dims rows(a_sizes.begin() + batch_count,
                  a_sizes.begin() + batch_count + static_cast<int64_t>(sum->rows.size()));
  const Dims columns(b_sizes.end() - static_cast<int64_t>(sum->columns.size()), b_sizes.end());
  const Dims inner(a_sizes.end() - static_cast<int64_t>(sum->inner.size()), a_sizes.end());
  const Dims other(b_sizes.begin() + batch_count, b_sizes.end() - static_cast<int64_t>(columns.size()));
  if (!std::equal(batch.begin(), batch.end(), b_sizes.begin()) || inner != other) {
    return node.Refuse("shapes that do not fit");
  }
  a = AsMatrices(node, a, batch, Product(rows), Product(inner));
  b = AsMatrices(node, b, batch, Product(inner), Product(columns));
  if (node.builder().refused()) return;
  Tensor result = ProductOf(node, a, b, batch, RealProduct(node));
  Dims dims = batch;
  dims.insert(dims.end(), rows.begin(), rows.end());
  dims.insert(dims.end(), columns.begin(), columns.end());
  result.view = StridedView::Packed(dims);
  Turn(&result, sum->batch + sum->rows + sum->columns, sum->result);
  node.Give(0, std::move(result));
}

}  // namespace normfuse::directml
