import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.demo import documentation
from cluster.demo.documentation import DOC_LENGTH_MAX, Entry, read_documentation

Tree = Callable[..., Path]


def names(root: Path) -> list[str]:
    return [entry.name for entry in read_documentation(root)]


def only(root: Path, name: str) -> Entry:
    (entry,) = (entry for entry in read_documentation(root) if entry.name == name)
    return entry


def test_modules_classes_functions_and_methods_are_read(tree: Tree) -> None:
    root = tree(
        **{
            "shop.py": '''
"""Sell things.

More about it.
"""
def price(item, *, currency: str = "EUR") -> float:
    """The price of one item."""
async def ship(order):
    """Send it."""
class Cart(dict, metaclass=type):
    """What a customer wants."""
    def add(self, item, /):
        """Put one in."""
    class Line:
        """One kind of item."""
        def total(self):
            """Its price."""
'''
        }
    )
    assert list(read_documentation(root)) == [
        Entry("shop", "module", "", "Sell things.", "Sell things.\n\nMore about it."),
        Entry(
            "shop.price",
            "function",
            "def price(item, *, currency: str='EUR') -> float",
            "The price of one item.",
            "The price of one item.",
        ),
        Entry("shop.ship", "function", "async def ship(order)", "Send it.", "Send it."),
        Entry("shop.Cart", "class", "class Cart(dict)", "What a customer wants.", "What a customer wants."),
        Entry("shop.Cart.add", "method", "def add(self, item, /)", "Put one in.", "Put one in."),
        Entry("shop.Cart.Line", "class", "class Line", "One kind of item.", "One kind of item."),
        Entry("shop.Cart.Line.total", "method", "def total(self)", "Its price.", "Its price."),
    ]


def test_private_names_and_what_has_no_docstring_are_left_out(tree: Tree) -> None:
    root = tree(
        **{
            "shop.py": 'def bare(): ...\ndef _f():\n  "Doc."\nclass _C:\n  "Doc."\n  def inside(self):\n    "Doc."\n',
            "_private.py": '"Doc."\ndef f():\n  "Doc."\n',
            "_hidden/__init__.py": '"Doc."\n',
        }
    )
    assert names(root) == []


def test_a_class_without_docstring_is_listed_by_its_initializer(tree: Tree) -> None:
    root = tree(**{"shop.py": 'class A:\n  def __init__(self):\n    "Make one."\nclass B: ...\n'})
    assert only(root, "shop.A").summary == "Make one."
    assert only(root, "shop.B") == Entry("shop.B", "class", "class B", "", "")


def test_definitions_under_conditions_are_found_and_the_first_counts(tree: Tree) -> None:
    root = tree(
        **{
            "m.py": """
try:
    import absent
except ImportError:
    def fallback():
        "In place of absent."
if True:
    def same():
        "First."
else:
    def same():
        "Second."
with open as file:
    class Inside: "Within."
"""
        }
    )
    assert names(root) == ["m.fallback", "m.same", "m.Inside"]
    assert only(root, "m.same").doc == "First."


def test_what_a_package_exports_has_the_package_s_name(tree: Tree) -> None:
    root = tree(
        **{
            "pack/__init__.py": """
from .one import *
from pack._two import Chosen, also as renamed
def __getattr__(name):
    from .three import Late
""",
            "pack/one.py": '__all__ = ("listed",)\ndef listed():\n  "Doc."\ndef unlisted():\n  "Doc."\n',
            "pack/_two.py": '"Doc."\nclass Chosen:\n  "Doc."\n  def act(self):\n    "Doc."\nclass Other:\n  "Doc."\n',
            "pack/three.py": 'class Late:\n  "Doc."\n',
            "pack/inner/__init__.py": "from .deep import *\n",
            "pack/inner/deep.py": 'def dive():\n  "Doc."\n',
        }
    )
    assert names(root) == [
        "pack.Chosen",
        "pack.Chosen.act",
        "pack.listed",
        "pack.one.unlisted",
        "pack.Late",
        "pack.inner.dive",
    ]


def test_stand_ins_are_known_by_the_public_name_and_the_module_proper_comes_first(tree: Tree) -> None:
    root = tree(
        **{
            "_pydatetime.py": '"The stand-in."\nclass date:\n  "A day."\n',
            "datetime.py": '"The module proper."\n',
            "posixpath.py": 'def join():\n  "Doc."\n',
        }
    )
    assert names(root) == ["datetime", "datetime.date", "os.path.join"]
    assert only(root, "datetime").doc == "The module proper."


def test_test_packages_and_installed_ones_are_skipped(tree: Tree) -> None:
    skipped = ("test", "tests", "idlelib", "site-packages", "dist-packages", "not-a-package", "__pycache__")
    root = tree(**{f"{directory}/m.py": '"Doc."' for directory in (*skipped, "kept")})
    assert names(root) == ["kept.m"]


@pytest.mark.parametrize(
    "broken",
    [
        b"def broken(:\n",
        b'"""\xff\xfe not utf-8"""\n',
        b"# -*- coding: no-such-codec -*-\n",
        b"x = '\0'\n",
        b"\xef\xbb\xbf# -*- coding: latin-1 -*-\n",
        b"(" * 5_000 + b")" * 5_000,
        b"x = " + b"-" * 100_000 + b"1\n",
        b"def f(a=" + b"[" * 150 + b"]" * 150 + b"):\n  'Doc.'\n" + b"+".join([b"1"] * 20_000) + b"\n",
        b'"""Doc."""\n' + b"#" * documentation.FILE_BYTES_MAX,
        b"",
    ],
)
def test_a_file_that_cannot_be_read_does_not_stop_the_rest(tree: Tree, broken: bytes) -> None:
    root = tree(**{"a.py": '"Doc."', "b.py": broken, "c.py": '"Doc."'})
    assert {"a", "c"} <= set(names(root)) <= {"a", "b.f", "c"}


def test_what_is_no_regular_file_does_not_stop_the_rest(tree: Tree) -> None:
    root = tree(**{"a.py": '"Doc."', "directory.py/x.txt": ""})
    os.mkfifo(root / "pipe.py")
    (root / "dangling.py").symlink_to("nowhere")
    (root / "loop").symlink_to(root, target_is_directory=True)
    assert names(root) == ["a"]


def test_declared_encodings_and_old_escapes_are_read(tree: Tree) -> None:
    root = tree(
        **{"a.py": '# -*- coding: latin-1 -*-\n"Gr\xfc\xdfe"'.encode("latin-1"), "b.py": '"An old \\d escape."'}
    )
    assert only(root, "a").doc == "Grüße"
    assert only(root, "b").doc == "An old \\d escape."


def test_text_that_cannot_be_stored_is_cleaned_and_cut(tree: Tree) -> None:
    root = tree(**{"a.py": '"Half \\ud800 and \\0 nothing."', "b.py": f'"""{"long " * 10_000}"""'})
    assert only(root, "a").doc == "Half ? and  nothing."
    entry = only(root, "b")
    assert len(entry.doc) <= DOC_LENGTH_MAX
    assert len(entry.summary) <= 200


def test_nothing_is_imported_or_run(tree: Tree) -> None:
    root = tree(**{"rude.py": '"Doc."\nraise SystemExit("this module was run")\n'})
    assert names(root) == ["rude"]
    loaded = set(sys.modules)
    assert "ServerProxy" in {name.rpartition(".")[2] for name in names(Path(sysconfig.get_path("stdlib")) / "xmlrpc")}
    assert set(sys.modules) == loaded
