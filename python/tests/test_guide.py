"""The Python of the guide runs, each block by itself, and that of the README beside who it sends to."""

import pathlib
import re
import subprocess
import sys

import numpy
import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
GUIDE = ROOT / "crates" / "portolan" / "guide"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(page.stem, n, text) for page in sorted(GUIDE.glob("*.md")) for n, text in enumerate(BLOCK.findall(page.read_text()))]


@pytest.mark.parametrize(("page", "number", "text"), BLOCKS, ids=lambda part: str(part) if len(str(part)) < 40 else "")
def test_a_block_of_the_guide(page, number, text, tmp_path):
    # A file: processes that a block spawns import it.
    path = tmp_path / f"{page}_{number}.py"
    path.write_text(text)
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_place_of_the_guide_is_filled():
    assert "concepts" in {page for page, _, _ in BLOCKS}
    assert not [page.name for page in GUIDE.glob("*.md") if "<!-- In Python -->" in page.read_text()]


def test_the_block_of_the_readme(domain, name, patience):
    (block,) = BLOCK.findall((ROOT / "README.md").read_text())
    assert block.count('"cameras"') == 1
    with domain.bind("frames") as port:
        exec(compile(block.replace("cameras", name), "README.md", "exec"), {})
        header, frame = port.receive(timeout=patience)
        assert header == b"frame 1"
        assert (numpy.asarray(frame) == 0x7F).all()
        assert frame.shape == (1080, 1920, 3)
