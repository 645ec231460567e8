"""What protoc made of the kubelet's API is up to date, and its numbers on the wire are the kubelet's."""

import subprocess
import sys
from pathlib import Path

from fluence.deviceplugin import v1beta1_pb2 as api

SOURCE = Path(api.__file__).parents[2]
PROTO = "fluence/deviceplugin/v1beta1.proto"


def test_the_stubs_are_up_to_date(tmp_path: Path) -> None:
    """If not: `make stubs`."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCE)]
    subprocess.run(
        [*command, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(SOURCE / PROTO)], check=True
    )
    for name in ("v1beta1_pb2.py", "v1beta1_pb2.pyi"):
        made = (tmp_path / "fluence/deviceplugin" / name).read_text()
        assert made == (SOURCE / "fluence/deviceplugin" / name).read_text()


def test_the_bytes_are_those_of_the_kubelets_api() -> None:
    asked = api.RegisterRequest(version="v", endpoint="e", resource_name="r").SerializeToString()
    assert asked == b"\x0a\x01v\x12\x01e\x1a\x01r"
    listed = api.ListAndWatchResponse(devices=[api.Device(ID="i", health="h")]).SerializeToString()
    assert listed == b"\x0a\x06\x0a\x01i\x12\x01h"
    allocation = api.AllocateRequest.FromString(b"\x0a\x06\x0a\x01a\x0a\x01b\x0a\x03\x0a\x01c")
    assert [list(each.devices_ids) for each in allocation.container_requests] == [["a", "b"], ["c"]]
