"""Settings from four sources, and what is said when one is wrong."""

from __future__ import annotations

import runpy
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fluence.cli.choice import load_settings, settings_options, show_settings
from fluence.config import load, settings_of
from fluence.errors import InvalidInput
from fluence.schedule.settings import SchedulerSettings

ROOT = Path(__file__).parents[2]


def write(folder: Path, text: str) -> str:
    path = folder / "fluence.yaml"
    path.write_text(text)
    return str(path)


def test_the_defaults_alone_are_valid() -> None:
    loaded = load(SchedulerSettings)
    assert loaded.settings == SchedulerSettings() and not loaded.origins


def test_every_setting_has_words_and_a_default() -> None:
    for setting in settings_of(SchedulerSettings):
        assert setting.text.endswith("."), setting.key
        assert setting.kind in ("bool", "int", "float", "str", "list", "map"), setting.key


def test_a_later_source_wins_and_is_remembered(tmp_path: Path) -> None:
    file = write(tmp_path, "match-policy: low\nqueue_policy: fcfs\nin-flight: 4\nqps: 7\n")
    loaded = load(
        SchedulerSettings,
        file=file,
        environ={"FLUENCE_MATCH_POLICY": "high", "FLUENCE_IN_FLIGHT": "8", "FLUENCE_HANDLERS": "gang"},
        flags={"match_policy": "lonode", "queue_depth": None},
    )
    found = loaded.settings
    assert (found.match_policy, found.queue_policy, found.in_flight, found.qps) == ("lonode", "fcfs", 8, 7.0)
    assert loaded.origins == {
        "match_policy": "--match-policy",
        "queue_policy": f"{file}: queue_policy",
        "in_flight": "FLUENCE_IN_FLIGHT",
        "qps": f"{file}: qps",
    }


def test_lists_and_maps_read_the_same_from_a_file_and_from_text(tmp_path: Path) -> None:
    file = write(
        tmp_path, "topology: [block=b.io/b, rack=r.io/r]\ndefault-durations: {debug: 30m, batch: 7200}\n"
    )
    text = {
        "FLUENCE_TOPOLOGY": "block=b.io/b, rack=r.io/r",
        "FLUENCE_DEFAULT_DURATIONS": "debug=30m,batch=7200",
    }
    one, other = load(SchedulerSettings, file=file).settings, load(SchedulerSettings, environ=text).settings
    assert one == other
    assert one.layout().levels == (("block", "b.io/b"), ("rack", "r.io/r"))
    assert {name: each.default_limit for name, each in one.rules().items()} == {
        "debug": 1_800_000,
        "batch": 7_200_000,
    }


def test_times_are_numbers_or_words() -> None:
    for text in ("5400", "90m", "1h30m", "1.5h"):
        assert load(SchedulerSettings, environ={"FLUENCE_QUEUE_WINDOW": text}).settings.queue_window == 5400
    assert load(SchedulerSettings, environ={"FLUENCE_GATHER": "20"}).settings.gather == 20
    assert load(SchedulerSettings, environ={"FLUENCE_GATHER": "1s"}).settings.gather == 1000


def test_an_unknown_key_names_itself_and_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, "match-polcy: first\n")
    with pytest.raises(InvalidInput) as caught:
        load(SchedulerSettings, file=file)
    assert str(caught.value) == (f"{file}: no setting is called 'match-polcy': did you mean match-policy?")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"FLUENCE_MATCH_POLICY": "best"}, ["match-policy", "'best'", "lonode", "FLUENCE_MATCH_POLICY"]),
        ({"FLUENCE_QUEUE_POLICY": "magic"}, ["queue-policy", "magic", "FLUENCE_QUEUE_POLICY"]),
        ({"FLUENCE_QPS": "-1"}, ["FLUENCE_QPS", "-1", ">= 0"]),
        ({"FLUENCE_QPS": "fast"}, ["FLUENCE_QPS", "fast"]),
        ({"FLUENCE_IN_FLIGHT": "0"}, ["FLUENCE_IN_FLIGHT", ">= 1"]),
        ({"FLUENCE_LEASE": "perhaps"}, ["FLUENCE_LEASE", "neither true nor false"]),
        ({"FLUENCE_LEASE_DURATION": "1"}, ["lease-duration", "lease-retry < lease-renew"]),
        ({"FLUENCE_LEASE_DURATION": "13"}, ["lease-duration", "lease-duration - 2 * lease-retry"]),
        ({"FLUENCE_LEASE_NAME": ""}, ["FLUENCE_LEASE_NAME", "''"]),
        ({"FLUENCE_HEALTH_ADDRESS": "10451"}, ["health-address", "HOST:PORT"]),
        ({"FLUENCE_HEALTH_ADDRESS": "a:99999"}, ["health-address", "HOST:PORT"]),
        (
            {"FLUENCE_HEALTH_ADDRESS": "0.0.0.0:1", "FLUENCE_METRICS_ADDRESS": "0.0.0.0:1"},
            ["metrics-address", "another port"],
        ),
        ({"FLUENCE_STUCK_AFTER": "0"}, ["FLUENCE_STUCK_AFTER", "> 0"]),
        ({"FLUENCE_LOG_LEVEL": "loud"}, ["FLUENCE_LOG_LEVEL", "debug, info"]),
        ({"FLUENCE_TOPOLOGY": "rack"}, ["topology", "TYPE=LABEL"]),
        ({"FLUENCE_TOPOLOGY": "node=x"}, ["topology", "'node'"]),
        ({"FLUENCE_DEFAULT_DURATION": "long"}, ["FLUENCE_DEFAULT_DURATION", "2h30m"]),
        ({"FLUENCE_DEFAULT_DURATIONS": "debug=long"}, ["default-durations", "2h30m"]),
        ({"FLUENCE_BACKOFF": "60"}, ["backoff-max", "60"]),
    ],
)
def test_a_wrong_value_names_the_setting_its_origin_and_the_cure(
    environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(SchedulerSettings, environ=environ)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("health", "metrics", "at"),
    [
        ("127.0.0.1:1", "", ("127.0.0.1", 1)),
        ("[::1]:1", "", ("::1", 1)),
        ("localhost:1", "", ("localhost", 1)),
        ("0.0.0.0:1", "", None),
        (":1", "", None),
        ("fluence.example:1", "", None),
        ("", "", None),
        ("", "0.0.0.0:2", ("0.0.0.0", 2)),
        ("127.0.0.1:1", "127.0.0.1:1", ("127.0.0.1", 1)),
    ],
)
def test_metrics_are_beside_the_health_only_on_loopback(
    health: str, metrics: str, at: tuple[str, int] | None
) -> None:
    settings = SchedulerSettings(health_address=health, metrics_address=metrics)
    assert settings.metrics_at() == at


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "a: [", "\t:", "{", "? [a]: b"])
def test_a_file_that_is_no_mapping_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput):
        load(SchedulerSettings, file=write(tmp_path, text))


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    assert load(SchedulerSettings, file=write(tmp_path, "# nothing\n")).settings == SchedulerSettings()
    with pytest.raises(InvalidInput, match="No such file"):
        load(SchedulerSettings, file=str(tmp_path / "none.yaml"))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from([each.key for each in settings_of(SchedulerSettings)]), _JSON, max_size=3)
)
def test_whatever_is_in_the_file_it_is_a_value_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    file = tmp_path_factory.mktemp("c") / "f.yaml"
    file.write_bytes(msgspec.yaml.encode(document))
    try:
        load(SchedulerSettings, file=str(file))
    except InvalidInput as error:
        assert str(error)


def test_flags_and_the_table_of_what_is_in_force(tmp_path: Path) -> None:
    @click.command()
    @settings_options(SchedulerSettings)
    @click.option("-o", "--output", default="table")
    def command(config_file: str | None, output: str, **flags: object) -> None:
        show_settings(load_settings(SchedulerSettings, config_file, flags), output)

    file = write(tmp_path, "queue-policy: fcfs\n")
    words = ["--config", file, "--no-lease", "--topology", "rack=r.io/r", "--topology", "block=b.io/b"]
    done = CliRunner().invoke(command, words, env={"FLUENCE_QPS": "9"})
    assert not done.exception, done.output
    lines = {line.split()[0]: line.split()[1:] for line in done.output.splitlines()}
    assert lines["lease"][0] == "false" and lines["lease"][2] == "--lease"
    assert lines["topology"][0] == "rack=r.io/r,block=b.io/b"
    assert lines["qps"] == ["9", "-", "FLUENCE_QPS"]
    assert lines["match-policy"] == ["first", "-", "default"]
    told = msgspec.json.decode(CliRunner().invoke(command, [*words, "-o", "json"]).output)
    assert told["queue-policy"] == {"value": "fcfs", "from": f"{file}: queue-policy"}
    assert "FLUENCE_MATCH_POLICY; default: first" in " ".join(
        CliRunner().invoke(command, ["--help"], terminal_width=200).output.split()
    )


def test_the_page_of_settings_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "settings.py"))["page"]()
    assert (ROOT / "docs" / "settings.md").read_text() == page, "run: python docs/settings.py"
