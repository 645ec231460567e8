"""The document as it is, from a file: as the kubelet exchanges it, when it is wrong, and when it is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fluence.deviceplugin.advertising import follow_file
from fluence.deviceplugin.settings import DEFAULT_CAPACITY, MAX_CAPACITY, offered, read_capacity
from fluence.model.external_resources import DeviceTree, parse

QPU = "resources: [{type: qpu, name: sv1}]"
MORE = "resources: [{type: qpu, name: sv1}, {type: licence, count: 3}]"


def mount(folder: Path, version: int, text: str) -> None:
    """As the kubelet writes a ConfigMap: a new folder, and one rename of the link to it."""
    (folder / f"..{version}").mkdir()
    (folder / f"..{version}" / "resources.yaml").write_text(text)
    (folder / "..data_tmp").symlink_to(f"..{version}")
    (folder / "..data_tmp").rename(folder / "..data")
    if not (folder / "resources.yaml").is_symlink():
        (folder / "resources.yaml").symlink_to("..data/resources.yaml")


async def following(trees: AsyncIterator[DeviceTree]) -> tuple[str, ...]:
    async with asyncio.timeout(120):
        return (await anext(trees)).types


def test_a_mounted_config_map_is_followed_through_its_links(tmp_path: Path) -> None:
    async def run() -> None:
        trees = follow_file(tmp_path / "resources.yaml", every_s=0.01)
        assert await following(trees) == ()  # not there: idle
        mount(tmp_path, 1, QPU)
        assert await following(trees) == ("qpu",)
        mount(tmp_path, 2, MORE)
        assert await following(trees) == ("licence", "qpu")
        mount(tmp_path, 3, "")
        assert await following(trees) == ()

    asyncio.run(run())


def test_a_wrong_document_is_told_with_its_line_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        path = tmp_path / "resources.yaml"
        path.write_text(QPU)
        trees = follow_file(path, every_s=0.01)
        assert await following(trees) == ("qpu",)
        path.write_text("resources:\n  - {type: qpu}\n  - {nmae: x}\n")
        coming = asyncio.ensure_future(following(trees))
        while "line 3" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not coming.done()
        path.write_text(MORE)
        assert await coming == ("licence", "qpu")

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert caplog.text.count("qpu stay as they are") == 1


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "", str(MAX_CAPACITY + 1), "9" * 5000, "１"])
def test_a_capacity_that_is_none_is_ignored_with_a_warning(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_capacity(text) == DEFAULT_CAPACITY == 1000
    assert "FLUENCE_RESOURCE_CAPACITY" in caplog.text and len(caplog.text) < 500


def test_a_capacity_is_taken_as_it_is() -> None:
    assert read_capacity(" 5 ") == 5
    assert read_capacity(str(MAX_CAPACITY)) == MAX_CAPACITY


def test_every_type_at_every_level_is_offered_by_its_name() -> None:
    tree = parse("resources: [{type: qpu, name: a, count: 2, with: [{type: qubit, count: 9}]}]")
    assert offered(tree, 7) == {"fluxion.flux-framework.org/qpu": 7, "fluxion.flux-framework.org/qubit": 7}
