"""Simulate hosts on one machine, each in its own network namespace, connected by a switch whose links have a rate and a
delay.

    with Network(3, gbit=1.0, round_trip_ms=2.0) as network:
        with network.inside(0):           # this thread, and the processes that it starts, are on that host
            ...
        network.address(0)                # "192.0.2.1"

Each host has one link to the switch, with this rate in each direction. The switch drops no packets: packets wait for a
link in order, without a limit. The script needs root and /dev/net/tun. The switch is a process and takes processor time,
a large part of it on a small machine when all links are saturated.
"""
import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import select
import struct
import subprocess
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
# The hosts leave segmentation to the network device, like with real adapters: the switch forwards up to 64 KiB of a
# connection at once, preceded by a header of 10 bytes that describes the segmentation.
TUNSETOFFLOAD, TUN_F_CSUM, TUN_F_TSO4 = 0x400454D0, 0x01, 0x02
OFFLOAD_HEADER = 10
LARGEST = OFFLOAD_HEADER + (64 << 10)
DEVICE = "net0"
NETWORK = bytes([192, 0, 2])
LIBC = ctypes.CDLL(None, use_errno=True)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def enter(namespace):
    """Moves this thread into a network namespace, given as an open file."""
    if LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Network:
    def __init__(self, hosts, gbit=1.0, round_trip_ms=2.0):
        self.seconds_a_byte, self.delay_s = 8e-9 / gbit, round_trip_ms / 2000
        self.switch = None
        self.names = [f"scaling-{os.getpid()}-{i}" for i in range(hosts)]

    def address(self, host):
        return f"192.0.2.{host + 1}"

    @contextlib.contextmanager
    def inside(self, host):
        with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{self.names[host]}") as other:
            enter(other)
            try:
                yield
            finally:
                enter(own)

    def __enter__(self):
        try:
            self.open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def open(self):
        links = []
        for host, name in enumerate(self.names):
            ip("netns", "add", name)
            with self.inside(host):
                link = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(link, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
                fcntl.ioctl(link, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
                ip("link", "set", "lo", "up")
                ip("address", "add", f"{self.address(host)}/24", "dev", DEVICE)
                ip("link", "set", DEVICE, "up")
                # CUBIC is the usual congestion control; this machine's default may be another.
                ip("route", "replace", "192.0.2.0/24", "dev", DEVICE, "src", self.address(host), "congctl", "cubic")
            links.append(link)
        self.switch = multiprocessing.get_context("fork").Process(target=self.forward, args=(links,), daemon=True)
        self.switch.start()
        for link in links:
            os.close(link)

    def __exit__(self, *_):
        if self.switch:
            self.switch.terminate()
            self.switch.join()
        for name in self.names:
            if os.path.exists(f"/run/netns/{name}"):
                ip("netns", "delete", name)

    def forward(self, links):
        """Forwards packets, each no earlier than its links' rates and the delay allow."""
        with contextlib.suppress(OSError):
            os.nice(-10)
        up_free, down_free = [0.0] * len(links), [0.0] * len(links)
        host_of = {link: host for host, link in enumerate(links)}
        # A heap of packets by the time at which they arrive at the switch or at their host.
        on_the_way, number = [], 0
        while True:
            wait = max(on_the_way[0][0] - time.monotonic(), 0) if on_the_way else None
            for link in select.select(links, [], [], wait)[0]:
                while (packet := receive(link)) is not None:
                    # Only IPv4 packets to a host of this network are forwarded.
                    destination = packet[OFFLOAD_HEADER + 16 : OFFLOAD_HEADER + 20]
                    to = destination[3] - 1
                    if packet[OFFLOAD_HEADER] >> 4 != 4 or destination[:3] != NETWORK or not 0 <= to < len(links):
                        continue
                    bytes_on_wire = len(packet) - OFFLOAD_HEADER
                    now, takes, host = time.monotonic(), bytes_on_wire * self.seconds_a_byte, host_of[link]
                    up_free[host] = max(now, up_free[host]) + takes
                    number += 1
                    heapq.heappush(on_the_way, (up_free[host], number, takes, to, packet))
                    if on_the_way[0][0] <= now:
                        break
            now = time.monotonic()
            while on_the_way and on_the_way[0][0] <= now:
                at, _, takes, to, packet = heapq.heappop(on_the_way)
                if takes:
                    # The packet is forwarded while it arrives, unless others are queued before it.
                    down_free[to] = max(at, down_free[to] + takes)
                    number += 1
                    heapq.heappush(on_the_way, (down_free[to] + self.delay_s, number, 0, to, packet))
                    continue
                # A packet that the host does not accept is lost, like on a wire.
                with contextlib.suppress(OSError):
                    os.write(links[to], packet)


def receive(link):
    try:
        return os.read(link, LARGEST)
    except BlockingIOError:
        return None
