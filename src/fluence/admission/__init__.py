"""Admission: changes new objects before they are stored, by one table of rules.

Read in this order: ``rule`` (what a rule is), ``hand_off``, ``coordination`` and ``queueing`` (the rules,
each as CEL and as Python), ``users`` (who submitted what, and who may name which queue), ``scopes`` (which
rules apply where), ``manifests`` (rules as policies and webhooks), ``admit`` (rules applied to an object),
``review``, ``server`` and ``certificates`` (the webhook).
"""
