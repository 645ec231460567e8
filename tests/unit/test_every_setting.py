"""Every setting of every program can be given in a file, by a flag and by a variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from fluence.cli.choice import load_settings, settings_options, show_settings
from fluence.config import Setting, settings_of
from fluence.deviceplugin.settings import DevicePluginSettings
from fluence.schedule.build import scheduler_for
from fluence.schedule.settings import SchedulerSettings
from fluence.service.settings import ServiceSettings

PROGRAMS: tuple[type[msgspec.Struct], ...] = (SchedulerSettings, DevicePluginSettings, ServiceSettings)
# Another value than the default, where not any one of its type will do.
VALUES: dict[str, Any] = {
    "resources-configmap": "physics/devices",
    "match-policy": "lonode",
    "queue-policy": "fcfs",
    "queue-priority": "fluence.queue.rules:by_urgency",
    "queue-predictor": "fluence.queue.history:History",
    "default-durations": {"debug": "30m", "batch": "7200"},
    "max-durations": {"debug": "1h", "-": "2d"},
    "queues": ["debug", "batch"],
    "enforce-limits": {"debug": "end", "-": "warn"},
    "user-device-limits": {"batch/qpu": 2, "-/qpu": 0},
    "queue-device-limits": {"batch/qpu": 3},
    "backoff-max": 20.0,
    "topology": ["rack=example.com/rack", "zone=topology.kubernetes.io/zone"],
    "devices": ["example.com/fpga=fpga"],
    "allow": ["node", "core"],
    "database-url": "sqlite:////var/lib/history.db",
    "non-preempting-queues": ["batch"],
    "scheduler-aliases": ["fluxnetes"],
    "lease-duration": 30.0,
    "lease-renew": 9.0,
    "lease-retry": 1.0,
    "health-address": "127.0.0.1:7",
    "metrics-address": "127.0.0.1:8",
    "view-address": "127.0.0.1:9",
    "traces": "http://collector:4318",
}
CASES = [
    pytest.param(program, setting, id=f"{program.__name__}-{setting.key}")
    for program in PROGRAMS
    for setting in settings_of(program)
]


def other_value(setting: Setting) -> Any:
    """A value that is not the default."""
    if setting.key in VALUES:
        return VALUES[setting.key]
    if setting.choices:
        return next(each for each in setting.choices if each != setting.default)
    plain: dict[str, Any] = {
        "bool": lambda: not setting.default,
        "int": lambda: (setting.default or 0) + 7,
        "float": lambda: (setting.default or 0.0) + 1.5,
        "str": lambda: "/some/text",
    }
    return plain[setting.kind]()


def given(setting: Setting, value: Any) -> str:
    """The value as it is written in a variable or a flag."""
    return setting.show(tuple(value) if isinstance(value, list) else value)


def started(program: type[msgspec.Struct], words: list[str], environ: dict[str, str]) -> dict[str, Any]:
    """The settings of a program that was started so."""

    @click.command()
    @settings_options(program)
    def command(config_file: str | None, **flags: object) -> None:
        loaded = load_settings(program, config_file, flags)
        if isinstance(loaded.settings, SchedulerSettings):
            scheduler_for(loaded.settings)
        show_settings(loaded, "json")

    others = {name: None for each in settings_of(program) for name in (each.variable, each.also)}
    done = CliRunner().invoke(command, words, env={**others, **environ})
    assert not done.exception, done.output or done.exception
    found: dict[str, Any] = msgspec.json.decode(done.output)
    return found


@pytest.mark.parametrize(("program", "setting"), CASES)
def test_a_setting_can_be_given_in_a_file(
    program: type[msgspec.Struct], setting: Setting, tmp_path: Path
) -> None:
    value, file = other_value(setting), tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({setting.key: value}))
    found = started(program, ["--config", str(file)], {})
    assert found[setting.key] == {"value": value, "from": f"{file}: {setting.key}"}


@pytest.mark.parametrize(("program", "setting"), CASES)
def test_a_setting_can_be_given_by_a_flag(program: type[msgspec.Struct], setting: Setting) -> None:
    value = other_value(setting)
    flag = [setting.flag, given(setting, value)]
    if setting.kind == "bool":
        flag = [setting.flag if value else f"--no-{setting.key}"]
    assert started(program, flag, {})[setting.key] == {"value": value, "from": setting.flag}


@pytest.mark.parametrize(("program", "setting"), CASES)
def test_a_setting_can_be_given_by_a_variable(program: type[msgspec.Struct], setting: Setting) -> None:
    value = other_value(setting)
    for variable in filter(None, (setting.variable, setting.also)):
        found = started(program, [], {variable: given(setting, value)})
        assert found[setting.key] == {"value": value, "from": variable}


@pytest.mark.parametrize("text", ["batch/qpu=two", "batch/qpu=-1", "qpu=1", "batch/qpu"])
def test_a_limit_that_is_no_number_is_told(text: str) -> None:
    with pytest.raises(AssertionError, match="user-device-limits"):
        started(SchedulerSettings, ["--user-device-limits", text], {})
