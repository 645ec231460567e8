"""Rules: the table. The policy and the webhook are made from it.

A rule belongs to a handler, which a site selects and orders: `fluxion` hands the backend over, `quantum`
splits a group into its producer and those that wait for it, `doors` holds new work back. `gang` is accepted
and has no rules: the scheduler takes a label for a group itself, so that no PodGroup need be made.
"""

from __future__ import annotations

from fluence.admission.coordination import coordination_rules, coordination_warnings
from fluence.admission.doors import door_rules
from fluence.admission.hand_off import hand_off_rules
from fluence.admission.rule import AdmissionRule, Site, Warn


def table(site: Site) -> tuple[AdmissionRule, ...]:
    """Every rule, in the order in which those of one handler are applied."""
    return (*hand_off_rules(site), *coordination_rules(site), *(door_rules(site) if site.held else ()))


def warnings(site: Site) -> tuple[Warn, ...]:
    return coordination_warnings(site)
