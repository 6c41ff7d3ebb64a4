"""Shipped to users: conformance suites, traces, fakes that fail on purpose."""
