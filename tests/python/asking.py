"""An object of another process, asked through a socket, by as many as like."""

from multiprocessing.connection import Client, Listener


def serve(path, of):
    """For ever; one question after the other. of(name): whose method that is."""
    with Listener(path) as listener:
        while True:
            with listener.accept() as asker:
                name, arguments, named = asker.recv()
                try:
                    asker.send((True, getattr(of(name), name)(*arguments, **named)))
                except Exception as error:
                    asker.send((False, f"{type(error).__name__}: {error}"))


def ask(path, name, *arguments, **named):
    with Client(path) as served:
        served.send((name, arguments, named))
        good, result = served.recv()
    if not good:
        raise RuntimeError(result)
    return result
