import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from fakes import WEIGHTS

from jaxhack import weights

(FAKE,) = WEIGHTS
BUNDLED = FAKE._replace(source="bundled:fakebundle")
SHIPPED = FAKE._replace(source="pypi:fakeship==1.0:fakeship/data/fake.bin")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Its own empty cache, and no folder of models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAXHACK_MODELS", raising=False)


def put(path: Path, content: bytes = b"fake") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def make_wheel(folder: Path, member: str, content: bytes) -> None:
    info = "fakeship-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: fakeship\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / "fakeship-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)


def test_places_are_searched_in_order(tmp_path, monkeypatch):
    site = tmp_path / "site"
    put(site / "fakeship-1.0.dist-info" / "METADATA", b"Metadata-Version: 2.1\nName: fakeship\nVersion: 1.0\n")
    put(site / "fakeship" / "__init__.py", b"raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("JAXHACK_MODELS", str(tmp_path / "env"))
    models = tmp_path / "models"
    models.mkdir()
    expected = [
        models / "fake" / "fake.bin",
        models / "fake.bin",
        tmp_path / "env" / "fake" / "fake.bin",
        tmp_path / "env" / "fake.bin",
        site / "fakeship" / "data" / "fake.bin",
        weights.cache_path(SHIPPED),
    ]
    for path in expected[::-1]:  # each one made comes before those made so far
        put(path)
        assert weights.locate("fake", (SHIPPED,), models) == {"fake.bin": path}
    assert "fakeship" not in sys.modules
    for path in expected[:4]:
        path.unlink()
    put(expected[4], b"of another version")
    assert weights.find(SHIPPED, models) == expected[5]


def test_missing_says_where_and_how(tmp_path):
    (tmp_path / "models").mkdir()
    with pytest.raises(ValueError, match=r"jaxhack models get fake$") as refusal:
        weights.locate("fake", (SHIPPED,), tmp_path / "models")
    for place in ("models/fake/fake.bin", "models/fake.bin", "fakeship (not installed)", "cache"):
        assert place in str(refusal.value)
    with pytest.raises(ValueError, match="absent' does not exist"):
        weights.locate("fake", (SHIPPED,), tmp_path / "absent")


def test_other_contents_are_refused(tmp_path):
    path = put(tmp_path / "fake" / "fake.bin", b"evil")
    with pytest.raises(ValueError) as refusal:
        weights.locate("fake", WEIGHTS, tmp_path)
    for part in (str(path), hashlib.sha256(b"evil").hexdigest(), FAKE.sha256, "remove it"):
        assert part in str(refusal.value)


def test_fetch_without_a_network_says_what_to_do(monkeypatch):
    with pytest.raises(ValueError, match=r"could not be fetched from https://127.0.0.1:9.*--models DIR") as refusal:
        weights.fetch(FAKE)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match="no source"):
        weights.fetch(FAKE._replace(source="http://127.0.0.1/fake.bin"))
    assert not weights.cache_path(FAKE).exists()


@pytest.mark.parametrize(("content", "right"), [(b"fake", True), (b"evil", False)])
def test_fetch_over_https_checks_the_hash(monkeypatch, content, right):
    import pooch

    monkeypatch.setattr(
        pooch, "retrieve", lambda url, known_hash, fname, path, downloader: put(path / fname, content)
    )
    if right:
        assert weights.fetch(FAKE).read_bytes() == b"fake"
        monkeypatch.setattr(pooch, "retrieve", None)  # a second time needs no network
        assert weights.find(FAKE) == weights.fetch(FAKE) == weights.cache_path(FAKE)
    else:
        with pytest.raises(ValueError, match="other contents for fake"):
            weights.fetch(FAKE)
        assert list(weights.cache_path(FAKE).parent.iterdir()) == []


@pytest.mark.parametrize(
    ("member", "content", "reason"),
    [
        ("fakeship/data/fake.bin", b"fake", None),
        ("fakeship/data/fake.bin", b"evil", "other contents"),
        ("fakeship/data/fake.bin", b"longer", "not the 4 bytes"),
        ("fakeship/other.bin", b"fake", "does not hold"),
        (None, b"", "could not be fetched from pypi:fakeship"),
    ],
)
def test_fetch_out_of_a_wheel(tmp_path, monkeypatch, member, content, reason):
    """With pip itself, and a folder in place of the package index."""
    pytest.importorskip("pip")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    if member:
        make_wheel(tmp_path, member, content)
    if reason is None:
        assert weights.fetch(SHIPPED) == weights.cache_path(SHIPPED)
        assert weights.find(SHIPPED).read_bytes() == b"fake"
    else:
        with pytest.raises(ValueError, match=reason):
            weights.fetch(SHIPPED)
        assert not weights.cache_path(SHIPPED).exists()


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("CC-BY-NC-SA-4.0", True),
        ("CC BY-NC-SA 4.0", True),
        ("CC BY NC 4.0", True),
        ("Apache-2.0", False),
        ("MIT", False),
        ("CC-BY-4.0", False),
    ],
)
def test_non_commercial_licences_are_marked(licence, expected):
    assert weights.is_non_commercial(licence) is expected
    assert ("NON-COMMERCIAL" in weights.described_licence(licence)) is expected


@pytest.fixture(params=[True, False], ids=["package", "namespace package"])
def bundle(tmp_path, monkeypatch, request) -> Path:
    """Where an installed package of ours keeps its file; it is not there yet."""
    folder = tmp_path / "site" / "fakebundle"
    folder.mkdir(parents=True)
    if request.param:
        put(folder / "__init__.py", b"raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder / "fake.bin"


def test_a_bundled_file_comes_before_the_cache_and_after_the_folders(bundle, tmp_path, monkeypatch):
    cached = put(weights.cache_path(BUNDLED))
    assert weights.find(BUNDLED) == cached
    put(bundle)
    assert weights.find(BUNDLED) == weights.fetch(BUNDLED) == bundle
    own = put(tmp_path / "env" / "fake.bin")
    monkeypatch.setenv("JAXHACK_MODELS", str(tmp_path / "env"))
    assert weights.find(BUNDLED) == own
    assert weights.fetch(BUNDLED) == bundle and "fakebundle" not in sys.modules


def test_a_namespace_package_may_lie_in_several_folders(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name / "fakebundle").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / name))
    path = put(tmp_path / "a" / "fakebundle" / "fake.bin")  # the one looked in last
    assert weights.find(BUNDLED) == path


def test_a_damaged_bundled_file_is_refused(bundle):
    put(weights.cache_path(BUNDLED))  # must not stand in for it
    put(bundle, b"evil")
    with pytest.raises(ValueError, match=f"fakebundle/fake.bin' is not the fake.bin expected.*{FAKE.sha256}"):
        weights.find(BUNDLED)
    with pytest.raises(ValueError, match=r"installation is damaged: .*fake.bin'.* has other contents; reinstall"):
        weights.fetch(BUNDLED)


def test_a_missing_bundled_file_is_a_damaged_installation(bundle):
    with pytest.raises(ValueError, match=rf"own {bundle}; the cache .* jaxhack models get fake$"):
        weights.locate("fake", (BUNDLED,))
    with pytest.raises(ValueError, match=r"installation is damaged: .*fake.bin'.* is missing; reinstall jaxhack\.$"):
        weights.fetch(BUNDLED)


def test_a_bundle_whose_package_is_absent_is_never_looked_for_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "nobodys" / "fake.bin")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert weights.find(FAKE._replace(source="bundled:nobodys")) is None


def test_files_beside_the_ports_are_found():
    import ports.lyra

    path = Path(ports.lyra.__file__)
    own = FAKE._replace(file="lyra.py", sha256=hashlib.sha256(path.read_bytes()).hexdigest(), source="bundled:ports")
    assert weights.find(own) == path
