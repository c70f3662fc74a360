"""The wire: protobuf and HTTP shapes in, values of the core out. protobuf types stop here."""
