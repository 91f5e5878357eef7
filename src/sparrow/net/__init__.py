"""TCP: a listener and a channel that exchange frames, and the dispatcher that passes requests to handlers."""

from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.net.dialer import connect
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestDispatcher
from sparrow.net.listener import Listener

__all__ = ["Address", "Channel", "HandlerResponse", "Listener", "RequestContext", "RequestDispatcher", "connect"]
