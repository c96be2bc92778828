"""skipring: publish/subscribe without a broker in the data path, which heals from any state."""
