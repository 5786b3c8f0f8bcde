"""Sound files, spectrograms and cepstral coefficients."""
import struct

import numpy as np

from . import Call, case


def wav(samples, channels=1, rate=8000, before=b""):
    data = struct.pack(f"<{len(samples)}h", *samples)
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + before + b"data" + struct.pack("<I", len(data)) + data
    return np.array(b"RIFF" + struct.pack("<I", len(body)) + body, object)


@case("DecodeWav")
def decode_wav(c):
    samples = [1, 2, -3, 32767, -32768, 5]
    for channels in (1, 2, 3):
        for attrs in (dict(), dict(desired_channels=2), dict(desired_samples=4), dict(desired_samples=9, desired_channels=1)):
            yield Call(wav(samples, channels), **attrs)
    yield Call(wav([]))
    yield Call(wav(samples, 1, 16000, b"LIST" + struct.pack("<I", 4) + b"abcd"))


@case("EncodeWav")
def encode_wav(c):
    for shape, rate in (((9, 1), 8000), ((4, 2), 16000), ((0, 1), 44100), ((3, 5), 1)):
        yield Call(c.values(shape, -1.2, 1.2, "float"), np.int32(rate))


@case("AudioSpectrogram")
def spectrogram(c):
    for shape, window, stride in (((40, 1), 8, 4), ((33, 2), 6, 5), ((3, 1), 4, 1), ((70, 1), 31, 7)):
        for squared in (False, True):
            yield Call(c.values(shape, -1, 1, "float"), window_size=window, stride=stride, magnitude_squared=squared, within=1e-5)


@case("Mfcc")
def cepstrum(c):
    for shape, rate, attrs in (
        ((1, 3, 65), 16000, dict()), ((2, 2, 9), 8000, dict(filterbank_channel_count=5, dct_coefficient_count=3, upper_frequency_limit=3000.0)),
        ((1, 2, 33), 22050, dict(lower_frequency_limit=300.0, dct_coefficient_count=40)), ((1, 1, 5), 4000, dict(upper_frequency_limit=5000.0)),
    ):
        yield Call(c.values(shape, 0, 9, "float"), np.int32(rate), within=2e-4, **attrs)
