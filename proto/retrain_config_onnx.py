"""Message classes of ``retrain_config_onnx.proto``; the stub beside this file holds their types."""

from amct_onnx.proto.pool import message_classes

globals().update(message_classes(__name__))
