"""Calls of gRPC that bring many messages and do not end by themselves: their connections, and their messages."""
