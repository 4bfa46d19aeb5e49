"""What tests share: shells, kernels, browsers, servers that misbehave, recorded flows."""
