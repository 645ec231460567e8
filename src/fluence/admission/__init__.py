"""Admission: what becomes of an object before it is stored, by one table of rules for policy and webhook.

Read in this order: ``expressions`` (what a rule can say), ``rules`` (what they say), ``edits`` (what they
change), ``scopes`` (which rules hold where), ``interpreter`` (rules on an object), ``policy`` and ``hooks``
(rules as manifests), ``server`` and ``keeper`` (the webhook and its certificates).
"""
