"""What a native library exports and needs, read from its headers."""

from dataclasses import dataclass
from pathlib import Path

import pefile
from elftools.elf.elffile import ELFFile
from macholib.mach_o import CPU_TYPE_NAMES, LC_BUILD_VERSION, LC_VERSION_MIN_MACOSX
from macholib.MachO import MachO
from macholib.SymbolTable import SymbolTable

# Parts of the C library itself. From glibc 2.34 on they are empty; 2.28 still keeps threads and dlopen in two of them.
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
ENTRY_POINTS = {"CreateEpFactories", "NormfuseHashContent", "ReleaseEpFactory", "RegisterCustomOps"}
# What zig's linker adds to every library for macOS: the addresses of its header and of a mark for destructors.
ADDED_FOR_MACOS = {"_mh_dylib_header", "__dso_handle"}
LARGEST = 4_000_000  # bytes, stripped


@dataclass(frozen=True)
class Binary:
    machine: str
    exports: frozenset[str]
    needs: frozenset[str]
    system: tuple[int, ...]  # the newest version of glibc that a symbol needs, or the oldest macOS; () for none


def read_elf(path: Path) -> Binary:
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym").iter_symbols()
        exports = {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"}
        needs = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
        names = [
            version.name
            for _, versions in elf.get_section_by_name(".gnu.version_r").iter_versions()
            for version in versions
        ]
        machine = elf.get_machine_arch()
    numbers = [tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in names if name.startswith("GLIBC_2")]
    return Binary(machine, frozenset(exports), frozenset(needs), max(numbers, default=()))


def read_pe(path: Path) -> Binary:
    with pefile.PE(path) as pe:
        exports = {symbol.name.decode() for symbol in pe.DIRECTORY_ENTRY_EXPORT.symbols}
        needs = {entry.dll.decode().lower() for entry in pe.DIRECTORY_ENTRY_IMPORT}
        machine = pefile.MACHINE_TYPE[pe.FILE_HEADER.Machine]
    return Binary(machine, frozenset(exports), frozenset(needs), ())


def read_macho(path: Path) -> Binary:
    file = MachO(str(path))
    (header,) = file.headers
    exports = {name.decode().removeprefix("_") for _, name in SymbolTable(file).extdefsyms}
    needs = {name for _, kind, name in header.walkRelocatables() if kind != "id_dylib"}
    oldest = {LC_BUILD_VERSION: "minos", LC_VERSION_MIN_MACOSX: "version"}
    (version,) = (getattr(fields, oldest[kind.cmd]) for kind, fields, _ in header.commands if kind.cmd in oldest)
    machine = CPU_TYPE_NAMES[header.header.cputype]
    return Binary(machine, frozenset(exports), frozenset(needs), (version >> 16, version >> 8 & 255))
