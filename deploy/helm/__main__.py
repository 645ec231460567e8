"""Write all that follows from the settings and from the chart: `python -m deploy.helm`, or `make manifests`.

In deploy/helm/fluence: Chart.yaml (the version), values.yaml (the settings), values.schema.json, README.md,
templates/admission.yaml (rules), crds/handoffs.yaml (their parameters), crds/fluxjobs.yaml and
crds/queues.yaml.
In deploy: fluence.yaml, scheduler/*.yaml and kind's configurations. In src/fluence/doctor: rbac.yaml and
admission-rbac.yaml.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from deploy.helm.admission import admission_template
from deploy.helm.manifests import CHART, everything, flux_jobs, queues
from deploy.helm.readme import readme
from deploy.helm.values import schema, with_settings

from fluence.admission.manifests import hand_off_definition, to_yaml

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def chart_files() -> dict[Path, str]:
    """The files of the chart itself that follow from others."""
    values = with_settings((CHART / "values.yaml").read_text())
    version = tomllib.loads(PYPROJECT.read_text())["project"]["version"]
    about = (CHART / "Chart.yaml").read_text()
    about = re.sub(r"^version: .*$", f"version: {version}", about, flags=re.MULTILINE)
    about = re.sub(r"^appVersion: .*$", f'appVersion: "{version}"', about, flags=re.MULTILINE)
    return {
        CHART / "Chart.yaml": about,
        CHART / "values.yaml": values,
        CHART / "values.schema.json": schema(),
        CHART / "README.md": readme(values),
        CHART / "templates" / "admission.yaml": admission_template(),
        CHART / "crds" / "handoffs.yaml": to_yaml([hand_off_definition()]),
        CHART / "crds" / "fluxjobs.yaml": flux_jobs(),
        CHART / "crds" / "queues.yaml": queues(),
    }


def main() -> None:
    # The manifests are rendered from the chart, so that comes first.
    for files in (chart_files, everything):
        for path, text in files().items():
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
