"""The systems that are compared: ours and its peers, each as its users would run it fastest."""
