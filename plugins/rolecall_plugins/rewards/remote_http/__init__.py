"""``remote_http``: asks a service for the reward of a sample.

``adapter`` is the plugin, ``circuit`` what it knows of the service's health.
"""
