"""Small image files that no op of the peer writes, in Base64."""
import base64

WEBP = {
    "lossy, 3 channels": (
        "UklGRlgAAABXRUJQVlA4IEwAAADQAQCdASoJAAcAAkA4JbACdADz22j14AD+8oNrSerrclzrdQLUhxpOMj5qaoYkbA9wNvvZufybsOyDxFpn/MocFjL5"
        "9G2j7fTsKAAA"
    ),
    "lossless, 3 channels": (
        "UklGRhIBAABXRUJQVlA4TAYBAAAvCIABAPfhNgAAsolt4/+TbGez1b7BOrZtM0+x+ZlJEak7xZgd2AaDAADLzLrRP8h7oIBta/6j9IPP9xqPXbeMXjOn"
        "WQQnISgFOVeEVC8w9WkCR/dUELsFyQuQerjx7+YGP3zzQwT5qW9WeIECV4PEaNDTJGELKQAMQ9FIwh8ddGjelVu/xfsAz/t5/8cHb3/yAKlXVWHs5ZOJ"
        "Q5Ek0fhxtIJvDo6nWGBCATXMtziFLrGV1qOvs1RiaG24w4n1w+t0Ywqns2WH7iXAMADAotll27ZtF9H/mMahCwvL0AAEI0H+vQ+BY6iflddNUyTjpdVx"
        "CjzHukm97bIk/k7crIui6qYdtf0M"
    ),
    "lossy, 4 channels": (
        "UklGRrIAAABXRUJQVlA4WAoAAAAQAAAACAAABgAAQUxQSEAAAAAAjYyKhoJ9eXVyW11jbHaCjZeeMzdDVm2GnrPCHSIySmiIp8LVHyQzS2iIpsHUODxH"
        "WG6FnK+9Y2Rpb3iBipKXVlA4IEwAAADQAQCdASoJAAcAAkA4JbACdADz22jpAAD+8oNrSerrclzrdQLUhxpOMj5qaoYkbA9wNvvZufybsOw3nE4/+ZQ4"
        "LGXz6NtH2+ngGAAA"
    ),
    "lossless, 4 channels": (
        "UklGRkwBAABXRUJQVlA4TEABAAAvCIABEPfBuLZtMx+xjRLSfylZmWVk226DbQAASWi79T4/9B237pgAuxhEtq3k/4+7E8AhMV0IwlDA3R2GcQAARo7Z"
        "9gtLNVg72lZESVzc34eG42ByOfFPWFRWhLeShRaSwie4kp917wHT//b3FP03Tj/Oq8+keS4x/65ik/U7wHI+zL4CgX1F+t8YhQ9O8E8gAuKAxOglCHgE"
        "xEPCuJZP3Xaud2KJsQ+9KZKkE4cIREQCAvbiEcIU5qfZTZuXtY04hPYZ4Mza/XG7ngqX5lbmrTs35jeWZUHT/cDnh1xSqczPmn1lmSJMNRcbzc1Sl4Uy"
        "PdX5sT+1exyVu1P2lzauH34eMAwAsGh22bZt20X0P5I4Chy17WcAwYirNctK4Bjq6fW+0RQpiEZ1nAzL8ZJZ3tf/vY9sFXk2jUOn2H6YAg=="
    ),
    "animated": (
        "UklGRqwCAABXRUJQVlA4WAoAAAASAAAABQAABAAAQU5JTQYAAAAAAAAAAABBTk1G0AAAAAAAAAAAAAUAAAQAACgAAAJWUDhMuAAAAC8FAAEQ78C0AQAk"
        "aGKc4A5RL6Bzrf9AcnepjKpvKGgjSbl7Rv/+XgEzhG1tbU3IGRZgAjCHAaxdwWHdwcpjlSpcwCoobNu2jdpK0t1+0IjC9JOxorIY2dhgV/7atdvxo+7z"
        "51W+U5WzH/e2euutkb7u/3LOp7lxLoxISSTkuC9DU8+xpf4fXAT3WkdKS3eK+wKCRLYewMGBAjUURpJkxu7ethHR//jvrtGcD7l2IZUtEwjTaSPlJh5B"
        "Tk1G0AAAAAAAAAAAAAUAAAQAACgAAAJWUDhMuAAAAC8FAAEQ78C0AQAkaGKc4A5RL6Bzrf9AcnepjKpvKGgjSbl7Rv/+XgEzhG1tbU3IGRZgAjCHAaxd"
        "wWHdwcpjlSpcwCoobNu2jdpK0t1+0IjC9JOxorIY2dhgV/7atdvxo+7z51W+U5WzH/e2euutkb7u/3LOp7lxLoxISSTkuC9DU8+xpf4fXAT3WkdKS3eK"
        "+wKCRLYewMGBAjUURpJkxu7ethHR/wDCdNpIuYnnv7tGcz7k2oVUtkxBTk1G0AAAAAAAAAAAAAUAAAQAACgAAAJWUDhMuAAAAC8FAAEQ78C0AQAkaGKc"
        "4A5RL6Bzrf9AcnepjKpvKGgjSbl7Rv/+XgEzhG1tbU3IGRZgAjCHAaxdwWHdwcpjlSpcwCoobNu2jdpK0t1+0IjC9JOxorIY2dhgV/7atdvxo+7z51W+"
        "U5WzH/e2euutkb7u/3LOp7lxLoxISSTkuC9DU8+xpf4fXAT3WkdKS3eK+wKCRLYewMGBAjUURpJkxu7ethHR/3A+5NqFVLZMIEynjZSbeP67azQ="
    ),
    "animated, lossy": (
        "UklGRs4BAABXRUJQVlA4WAoAAAASAAAABQAABAAAQU5JTQYAAAAAAAAAAABBTk1GhAAAAAAAAAAAAAUAAAQAACgAAAJBTFBIHwAAAAyN//78/PvOAwgN"
        "DhHYAgYKDQ3qAQQFBwcCAP8A/wAAVlA4IEQAAABQAQCdASoGAAUAAkA4JZgABYwAAOQ/+Pbx3tf6ffG3cych/9QbVcXf19Wfr/usvr34Bvs6/iMkd+/F"
        "XkTSOa3htCAAAEFOTUaIAAAAAAAAAAAABQAABAAAKAAAAkFMUEgfAAAAAB0iMkpoiB8kM0toiI2MioaCfVtdY2x2gjM3Q1ZthgBWUDggSAAAAFABAJ0B"
        "KgYABQACQDgliAAFjAAA/rpf/yH0r3+cx/5ydySmp4f9uzgmfHUcSogxjaQAIj5m+sL3++MtmXgPDuUcAH9VG+HgAEFOTUaGAAAAAAAAAAAABQAABAAA"
        "KAAAAkFMUEgfAAAADFsCBgkKDNgCBgoNDeoBBAUHBwIA/wD/AG767+Tf2wBWUDggRgAAAFABAJ0BKgYABQACQDglkAAFjAAA/pM/4Yv/k2/8jf/2+CMs"
        "KOf7pWrhtZuM/xne7Zd0WW+Tuv0t+WlDp/3JMaocfbUAAAA="
    ),
}
JXL = {
    "lossless, 1 channels": (
        "/wowMBAUNwIIBAEA0ABLGIsVwgFsY5TYz/cDADxvn3Ku07/UfkqQexvb6dRRzE7GN9JAUFLcNN5NkIXwhuQ2sVTU"
    ),
    "lossy, 1 channels": (
        "/wowMJAUNwIBJAELVBIAgAqVUcYNXs71fPmhw2LaxnWGttq2sISx2V4YJCQcMcZlwzeHuCU4UEWhkkQiBG/7X1eCqJOPyh13GCUAKHriewE0ACIB"
    ),
    "lossless, 3 channels": (
        "/wowMBAJCAQBALgDSxiTjoWFKTCiMsIwrOS+C8QPsJJ0eCUEHnWCPXFPGXfVwYkxB9G8xttHISjP9KFA1KQWfGV6cgFf47krBtT1a0Zg+iwPsLV8UOJM"
        "Z8E8Pzs9Ygww7yv1LfCEIr7MgF/wKZQL2xFIR7Tar3WmyA7RPhBTwXmFXw1Jk+Cj4RludNpTYl3h4iiBR4k9ZH/KMvNdFB22QZW5NO84AZSw1Bi9/kpi"
        "Nv9XvKPMwSfxb3KhnSnmWmRBDPA+x1WPoYhCoEGsQWdRb+nS02PqItgde/cdKOpxNNkVKGtrtQ0mk2wtoSroaCQmwzXD+iQVIH0iAA=="
    ),
    "lossy, 3 channels": (
        "/wowsAEBXAELVBIAgAqVUcYNXs71fPmhw2LaxnWGttq2sISx2V4YJCQcgd7WDdI8vVs0znILHSqQIagkkY6Ik91+/ZiSIbrfow8du8hEAEa7bGaikP7B"
        "8QHkmgesZKA="
    ),
    "lossless, 4 channels": (
        "/wowMLASCBAQAKgESxiTjoWDCYBWAEJUYlqLrRGGUC4gP0AnuQlAMoms7DSWSX7kmYmukhfq9wAQRo8koSRAZlrrV6QSRBG4aiTGqYeC97b9MATQoqSu"
        "LNISUPgnFz/k+JSNUUbsBTHd30J5NvESDTd16w1KliDg5WThmOqxVPSCkKWR9Bo5incLMQuQIDu2sVQFzWAF1hzvtAxKaYhQneWYtze2riz7SF+j8rj3"
        "yqQjcuU/b7d6i+3P+fRAKuP8ZNhOUBfhQfjEOE2kAAETQcKIZmoQp0AVnMnWGa2m1AfIHva3cHUxZ6fO1mN3yng6//SX0ukrkVZibndL0lIBSmiAJ5ij"
        "4B0gDiRXyBcPEG7g6Ew5D9X4/rD7tferoQjpuP62KA2L8p9kMhz7oNQYKVTFBgE4Bg=="
    ),
    "lossy, 4 channels": (
        "/wowMLATASgCC1QSAIAKlVHGDV7O9Xz5ocNi2sZ1hrbatrCEsdmeCwWDhIQj2AbME+qfT+OZvZPe240FKpKoy9I9BUqqumKVvmsAhLGirylljORJVgJN"
        "hY1yctZAUOmuZTQ/vXch7mIHnbQEDpBKEumIONnt148pGaL7PfrQsYtMBGC0y2YmCukfHB9ArnnASgYK"
    ),
    "16 bits": (
        "AAAADEpYTCANCocKAAAAFGZ0eXBqeGwgAAAAAGp4bCAAAAAJanhsbAoAAADuanhsY/8KICD8ABQtAggEAQBcA0sYk46DhQnAkp5jsKAKhIBfIDwAwm8C"
        "gEJAdjYCFDRBFvJwbtoUZVRp6A5/wiZ/iedgBc3SPB43GOplaYL+EKxNDox1l8dV3uMLZsQYDR0ixENJOcAE9dkKQED0h0BUzya9rhNw8Gx4VHM4B4OG"
        "yQGnj4q6RUKKL2GKhuLNaLYUYngAdAHW+ekUX6aY4ml8wEpSRauKSgEkvEK9QgLJ4VGjo/gDNdOkCz5CAFkDolL7z/1+qUa7W2/yrlcdLvrDsEpBTSNv"
        "wmN3bf3pEWuiLbkbentHt7IA"
    ),
    "animated": (
        "/wogIEETAIgJCAQBAOABSxiLFSDyfoHwAKRuJgDsriVK2iqn1eqw5r6/LzvW3B6Z1ZDfr53cY9hMQ7iVyrSvcDkT2w28RbQNuqjOUVXP5DD0UBxbXA+K"
        "tZCF5p3Awhr/yfj7k+Chm99Tp8H2Zyu8SDXuoJvodKa6UVcGsJIxUMwkAgJcLCACCAQFAOABSxiLFSDyfoHwAKRuJgDsriVK2iqn1eqw5r6/LzvW3B6Z"
        "1ZDfr53cY9hMQ7iVyrSvcDkT2w28RbQNuqjOUVXP5DD0UBxbXA+KtZCF5p3Awhr/yfj7k+Chm99Tp8H2Zyu8QDXuoCNgdFUMII3JAqyoAGoEDQBXASgQ"
    ),
    "in a container": (
        "AAAADEpYTCANCocKAAAAFGZ0eXBqeGwgAAAAAGp4bCAAAACManhsY/8KICAQCQgEAQDgAUsYixUg8n6B8ACkbiYA7K4lStoqp9XqsOa+vy871twemdWQ"
        "36+d3GPYTEO4lcq0r3A5E9sNvEW0DbqozlFVz+Qw9FAcW1wPirWQheadwMIa/8n4+5PgoZvfU6fB9mcrvEg17qCb6HSmulFXBrCSMVDMJAICXCwgAg=="
    ),
}


def decoded(files):
    """Returns the files of a dictionary as bytes."""
    return {name: base64.b64decode(text) for name, text in files.items()}
