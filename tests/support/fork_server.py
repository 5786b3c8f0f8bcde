"""Runs Python scripts in copies of one process that has imported TensorFlow, because the import takes seconds of a core.

    python fork_server.py serve SOCKET                   # until standard input ends
    python -I -S fork_server.py run SOCKET SCRIPT ARG…   # like `python SCRIPT ARG…`

`run` passes its arguments, environment, folder and standard streams, and exits as the script does. If `run` is killed, the
script's process ends too. SOCKET is the name of a socket in Linux's abstract namespace; other users are refused.
"""
import os
import socket
import sys

# The exit status of a script whose process ended without one.
CRASHED = 134
REQUEST_LIMIT = 1 << 20


def address(name):
    return "\0" + name


def request(name, arguments):
    """Runs a script at the server and returns its exit status."""
    import json

    text = json.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_LIMIT)
        server.connect(address(name))
        socket.send_fds(server, [text], [0, 1, 2])
        status = server.recv(1)
    return status[0] if status else CRASHED


def serve(name):
    """Accepts requests and forks a process for each, until standard input ends."""
    import select
    import signal
    import struct

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address(name))
    listener.listen(64)
    os.write(1, b"\n")
    sys.dont_write_bytecode = True
    import numpy  # noqa: F401
    import tensorflow.compat.v1  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            connection.close()
            continue
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run_script(connection)
        connection.close()


def run_script(connection):
    """Runs the requested script in this process, and ends the process."""
    import atexit
    import json
    import runpy
    import threading
    import traceback

    import numpy

    text, streams, _, _ = socket.recv_fds(connection, REQUEST_LIMIT, 3)
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    asked = json.loads(text)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["arguments"]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    numpy.random.seed()

    def end_with_the_caller():
        connection.recv(1)
        os._exit(CRASHED)

    threading.Thread(target=end_with_the_caller, daemon=True).start()
    # The caller waits until no process has the connection.
    os.register_at_fork(after_in_child=connection.close)
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(bytes([status & 0xFF]))
    os._exit(status & 0xFF)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(request(sys.argv[2], sys.argv[3:]))
