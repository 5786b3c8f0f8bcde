"""JPEG files with a scan for each component, made from files with one scan."""
import struct


def segments(file):
    """Returns the segments before the data of the first scan, each as marker and content, and the data."""
    found, at = [], 2
    while True:
        marker, size = file[at + 1], struct.unpack(">H", file[at + 2:at + 4])[0]
        found.append((marker, file[at + 4:at + 2 + size]))
        at += 2 + size
        if marker == 0xDA:
            return found, file[at:file.rindex(b"\xff\xd9")]


def huffman_tables(content):
    """Yields the number of each table in a segment, and its codes as strings of bits, by symbol."""
    while content:
        counts, symbols = content[1:17], list(content[17:17 + sum(content[1:17])])
        code, codes = 0, {}
        for length, count in enumerate(counts, 1):
            for _ in range(count):
                codes[symbols[len(codes)]] = f"{code:0{length}b}"
                code += 1
            code <<= 1
        yield content[0], codes
        content = content[17 + len(symbols):]


class Bits:
    """The bits of a scan, read from the start."""

    def __init__(self, data):
        self.text = "".join(f"{byte:08b}" for byte in data.replace(b"\xff\x00", b"\xff"))
        self.at = 0

    def take(self, count):
        self.at += count
        return self.text[self.at - count:self.at]

    def symbol(self, codes):
        """Returns a symbol and its code; `codes` has symbols by code."""
        start = self.at
        while self.text[start:self.at] not in codes:
            self.at += 1
        return codes[self.text[start:self.at]], self.text[start:self.at]


def with_a_scan_per_component(file):
    """Returns the same image, of the same coefficients, as a sequential file in which each component has a scan."""
    found, data = segments(file)
    tables = dict(pair for marker, content in found if marker == 0xC4 for pair in huffman_tables(content))
    frame = next(content for marker, content in found if marker == 0xC0)
    height, width = struct.unpack(">HH", frame[1:5])
    parts = [(frame[6 + 3 * i], frame[7 + 3 * i] >> 4, frame[7 + 3 * i] & 15) for i in range(frame[5])]
    scan = found[-1][1]
    chosen = {scan[1 + 2 * i]: scan[2 + 2 * i] for i in range(scan[0])}
    most = [max(part[axis] for part in parts) for axis in (1, 2)]
    readers = {number: {code: symbol for symbol, code in codes.items()} for number, codes in tables.items()}
    bits, last, blocks = Bits(data), {}, {}
    for row in range(-(-height // (8 * most[1]))):
        for column in range(-(-width // (8 * most[0]))):
            for name, across, down in parts:
                for y in range(down):
                    for x in range(across):
                        size, _ = bits.symbol(readers[chosen[name] >> 4])
                        raw = bits.take(size)
                        difference = 0 if not size else int(raw, 2) - (0 if raw[0] == "1" else (1 << size) - 1)
                        last[name] = last.get(name, 0) + difference
                        rest, count = "", 1
                        while count < 64:
                            symbol, code = bits.symbol(readers[0x10 | chosen[name] & 15])
                            rest += code + bits.take(symbol & 15)
                            if symbol == 0:
                                break
                            count += (symbol >> 4) + 1
                        blocks[name, row * down + y, column * across + x] = last[name], rest
    out = b"\xff\xd8" + b"".join(bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content for marker, content in found[:-1])
    for name, across, down in parts:
        rows, columns = -(-(-(-height * down // most[1])) // 8), -(-(-(-width * across // most[0])) // 8)
        text, before = "", 0
        for row in range(rows):
            for column in range(columns):
                value, rest = blocks[name, row, column]
                difference, before = value - before, value
                size = abs(difference).bit_length()
                raw = difference if difference > 0 else difference + (1 << size) - 1
                text += tables[chosen[name] >> 4][size] + (f"{raw:0{size}b}" if size else "") + rest
        text += "1" * (-len(text) % 8)
        coded = bytes(int(text[i:i + 8], 2) for i in range(0, len(text), 8)).replace(b"\xff", b"\xff\x00")
        out += b"\xff\xda\x00\x08\x01" + bytes([name, chosen[name]]) + b"\x00\x3f\x00" + coded
    return out + b"\xff\xd9"
