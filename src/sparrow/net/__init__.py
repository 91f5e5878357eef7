"""Sockets: a listener and a channel that speak frames, and the table that finds a request's handler."""

from sparrow.net.address import Address
from sparrow.net.channel import Channel, connect
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestDispatcher
from sparrow.net.listener import Listener

__all__ = ["Address", "Channel", "HandlerResponse", "Listener", "RequestContext", "RequestDispatcher", "connect"]
