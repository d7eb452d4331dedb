"""Protobuf schemas of the record and config files."""
