"""Protobuf schemas of the record and config files, and the message classes made from them.

Each ``<name>.proto`` here has a module ``amct_onnx.proto.<name>`` that holds its messages. To add a schema: write the
``.proto`` file, copy the three lines of such a module, run ``python -m amct_onnx.proto.compile``.
"""
