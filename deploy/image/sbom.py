"""Sbom: what the image is made of, as an SPDX 2.3 document: each package, its version, licence, origin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.message import Message
from email.parser import Parser
from typing import Any
from urllib.parse import quote

from deploy.image.debian import Deb
from deploy.image.layers import Layer

# Short names of Debian's copyright format (DEP-5) that SPDX spells otherwise.
_DEBIAN = {
    "apache-2": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "expat": "MIT",
    "gpl-1+": "GPL-1.0-or-later",
    "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later",
    "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later",
    "lgpl-2+": "LGPL-2.0-or-later",
    "lgpl-2.0+": "LGPL-2.0-or-later",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3+": "LGPL-3.0-or-later",
    "zlib": "Zlib",
}
_KNOWN = frozenset(_DEBIAN.values()) | {"0BSD", "ISC", "BSL-1.0", "PSF-2.0", "Python-2.0", "Unicode-3.0"}
_CLASSIFIERS = {
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
_PLAIN = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "mit license": "MIT",
}


class Licences:
    """Licences that SPDX has no name for get one of our own, with where its text is."""

    def __init__(self) -> None:
        self.own: dict[str, dict[str, str]] = {}

    def reference(self, name: str, text: str) -> str:
        key = "LicenseRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")
        self.own.setdefault(key, {"licenseId": key, "name": name, "extractedText": text})
        return key

    def debian(self, deb: Deb, documents: Mapping[str, str]) -> str:
        where = f"usr/share/doc/{deb.name}/copyright"
        text = documents.get(deb.name, "")
        names = sorted({each.strip() for each in re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)})
        if not text.startswith("Format:") or not names:
            return self.reference(f"debian-{deb.name}", f"See /{where} in the image.")
        parts = sorted({part for name in names for part in re.split(r"\s+(?:and|or)\s+|,\s*", name) if part})
        found = {
            _DEBIAN.get(part.lower())
            or (part if part in _KNOWN else self.reference(part, f"See /{where} in the image."))
            for part in parts
        }
        return " AND ".join(sorted(found))

    def python(self, metadata: Message) -> str:
        expression = metadata.get("License-Expression")
        if expression:
            return str(expression)
        plain = str(metadata.get("License") or "").strip()
        known = _KNOWN | {"Apache-2.0", "MIT", "MPL-2.0"}
        if plain in known:
            return plain
        if plain.lower() in _PLAIN:
            return _PLAIN[plain.lower()]
        for classifier in metadata.get_all("Classifier") or ():
            name = classifier.rpartition(" :: ")[2]
            if classifier.startswith("License ::") and name in _CLASSIFIERS:
                return _CLASSIFIERS[name]
        return "NOASSERTION"


def distributions(layers: Iterable[Layer]) -> list[Message]:
    """The metadata of each Python distribution in these layers."""
    found = [
        Parser().parsestr((file.data or b"").decode(), headersonly=True)
        for layer in layers
        for path, file in layer.files.items()
        if path.endswith(".dist-info/METADATA")
    ]
    return sorted(found, key=lambda each: str(each["Name"]).lower())


def document(
    name: str, epoch: int, debs: Sequence[Deb], pythons: Sequence[Message], digest: str, suite: str
) -> dict[str, Any]:
    """SPDX 2.3, as JSON. The same image has the same document."""
    licences = Licences()
    texts = _copyrights(debs)
    packages = [_debian(deb, licences.debian(deb, texts), suite) for deb in debs]
    packages += [_python(each, licences.python(each)) for each in pythons]
    image = {
        "SPDXID": "SPDXRef-image",
        "name": name,
        "versionInfo": digest,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": "CONTAINER",
    }
    contains = [("SPDXRef-image", "CONTAINS", each["SPDXID"]) for each in packages]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{quote(name, safe='')}-{digest[7:]}",
        "creationInfo": {
            "created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: fluence-deploy-image"],
        },
        "packages": [image, *packages],
        "hasExtractedLicensingInfos": [licences.own[key] for key in sorted(licences.own)],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"), *contains]
        ],
    }


def _copyrights(debs: Sequence[Deb]) -> dict[str, str]:
    """By package; some have only a link to another one's folder."""
    files = {path: file for deb in debs for path, file in deb.files.items()}
    found = {}
    for deb in debs:
        folder = f"usr/share/doc/{deb.name}"
        at = files.get(folder)
        if at is not None and at.link is not None:
            folder = f"usr/share/doc/{at.link.rpartition('/')[2]}"
        text = files.get(f"{folder}/copyright")
        if text is not None and text.data is not None:
            found[deb.name] = text.data.decode("utf-8", "replace")
    return found


def _debian(deb: Deb, licence: str, suite: str) -> dict[str, Any]:
    url = f"pkg:deb/debian/{deb.name}@{deb.version}?arch={deb.field('Architecture')}&distro={suite}"
    return _package(f"deb-{deb.name}", deb.name, deb.version, licence, url) | {
        "supplier": "Organization: Debian",
        "checksums": [{"algorithm": "SHA256", "checksumValue": deb.sha256}],
        "homepage": deb.field("Homepage") or "NOASSERTION",
    }


def _python(metadata: Message, licence: str) -> dict[str, Any]:
    name, version = str(metadata["Name"]), str(metadata["Version"])
    url = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    return _package(f"python-{name}", name, version, licence, url) | {"supplier": "NOASSERTION"}


def _package(key: str, name: str, version: str, licence: str, url: str) -> dict[str, Any]:
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", key),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}
        ],
    }
