"""Write docs/settings.md from the struct of all settings: `python docs/settings.py`."""

from pathlib import Path

from fluence.config import markdown
from fluence.deviceplugin.settings import DevicePluginSettings
from fluence.schedule.settings import SchedulerSettings

HEAD = """# Settings of the scheduler

Everything that `fluence scheduler run` can be told. A setting has one name in three spellings: the key in the
file that `--config` (or `FLUENCE_CONFIG`) names, the flag, and the variable. Flags go before variables,
variables before the file, the file before the defaults. `fluence scheduler settings` prints what is in force
and who said so.

```yaml
# fluence.yaml
match-policy: lonode
queue-policy: conservative
default-durations: {debug: 30m, batch: 12h}
topology: [block=topology.kubernetes.io/block, rack=topology.kubernetes.io/rack]
```

Times are numbers in the unit of the setting, or `90s`, `2h30m`, `1.5h`. A list in a variable or a flag is
separated by commas; a flag may be given several times. A key that does not exist is an error that names the
nearest one. An empty value is the same as none.

<!-- written by docs/settings.py; do not edit -->

"""


PLUGIN = """
## The device plugin

Everything that `fluence deviceplugin run` can be told, by the same rules ([what it is
for](devices.md#the-device-plugin)).

"""


def page() -> str:
    return HEAD + markdown(SchedulerSettings) + PLUGIN + markdown(DevicePluginSettings)


if __name__ == "__main__":
    (Path(__file__).parent / "settings.md").write_text(page())
