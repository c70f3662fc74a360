"""The waiting room: who waits, in which order they go, who must leave."""
