"""Write docs/settings.md from the struct of all settings: `python docs/settings.py`."""

from pathlib import Path

from fluence.config import markdown
from fluence.deviceplugin.settings import DevicePluginSettings
from fluence.schedule.settings import SchedulerSettings
from fluence.service.settings import ServiceSettings

HEAD = """# Settings of the scheduler

All settings of `fluence scheduler run`. Each has a key in the file of `--config` (or `FLUENCE_CONFIG`), a
flag, and an environment variable. Flags override variables, variables override the file, and the file
overrides the defaults.
`fluence scheduler settings` prints the values in force and where each comes from. A short file:

```yaml
# fluence.yaml
match-policy: lonode
queue-policy: conservative
default-durations: {debug: 30m, batch: 12h}
topology: [block=topology.kubernetes.io/block, rack=topology.kubernetes.io/rack]
```

Times are numbers in the unit of the setting, or `90s`, `2h30m`, `1.5h`. Lists in variables and flags are
separated by commas; a flag may be repeated. An unknown key is an error that names the nearest known one. An
empty value means that the setting is not set.

<!-- written by docs/settings.py; do not edit -->

"""


PLUGIN = """
## The device plugin

All settings of `fluence deviceplugin run`, set in the same way ([when you need
it](devices.md#the-device-plugin)).

"""


SERVICE = """
## The match service

Everything that `fluence service run` can be told, by the same rules ([what it is for](service.md)).

"""


def page() -> str:
    return (
        HEAD
        + markdown(SchedulerSettings)
        + PLUGIN
        + markdown(DevicePluginSettings)
        + SERVICE
        + markdown(ServiceSettings)
    )


if __name__ == "__main__":
    (Path(__file__).parent / "settings.md").write_text(page())
