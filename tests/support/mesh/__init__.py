"""What a mesh's control plane makes of our objects: the Envoy configuration that they end up as."""
