"""Addresses that a server must not fetch for a client: what they lead to, and every way to write them."""

INSIDE = (
    # RFC 6890 and what came later, IPv4: this host, private, shared, loopback, link-local, protocol assignments
    *("0.0.0.0", "0.0.0.1", "0.255.255.255", "10.0.0.0", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255"),
    *("127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.255", "169.254.0.1", "169.254.169.253", "169.254.169.254", "169.254.170.2"),
    *("172.16.0.0", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255"),
    *("192.0.0.1", "192.0.0.8", "192.0.0.9", "192.0.0.10", "192.0.0.170", "192.0.0.192", "192.0.0.255"),
    # documentation, benchmarks, relays, multicast, reserved, broadcast, a cloud's own host
    *("192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255", "192.88.99.1", "168.63.129.16"),
    *("224.0.0.1", "224.0.0.251", "233.252.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.254", "255.255.255.255"),
    # IPv6: unspecified, loopback, compatible, mapped, translated
    *("::", "::1", "::2", "::127.0.0.1", "::7f00:1", "::8.8.8.8", "::ffff:0:0", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1"),
    *(
        "::ffff:169.254.169.254",
        "::ffff:100.64.0.1",
        "::ffff:192.0.0.192",
        "::ffff:255.255.255.255",
        "::ffff:0:127.0.0.1",
        "::ffff:0:8.8.8.8",
    ),
    "0:0:0:0:0:ffff:7f00:0001",
    # NAT64: well known, of an IPv4 address inside; local
    *("64:ff9b::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b::c0a8:1", "64:ff9b::c000:c0"),
    *("64:ff9b:1::1", "64:ff9b:1::7f00:1", "64:ff9b:1:ffff::a00:1", "64:ff9b:0:0:1::8.8.8.8"),
    # 6to4, Teredo (whose client is written inverted), ORCHID, benchmarks, discard, dummy
    *("2002::", "2002:7f00:1::", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "2002:c0a8:101::1", "2002:808:808::1"),
    *(
        "2001::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
        "2001:0:7f00:1::",
        "2001:0:808:808::f5ff:fffe",
        "2001:1::1",
        "2001:2::1",
        "2001:10::1",
    ),
    *("2001:20::1", "2001:1ff::1", "100::1", "100:0:0:1::1"),
    # documentation, 6bone, segment routing, unique local, link-local, site-local, multicast, what is not assigned
    *("2001:db8::1", "3fff::1", "3fff:fff::1", "3ffe::1", "5f00::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fdff:ffff::1"),
    *("fe80::1", "fe80::a9fe:a9fe", "febf::1", "fec0::1", "feff::1", "ff01::1", "ff02::1", "ff02::fb", "ff05::1:3", "ff0e::1"),
    *("4000::1", "8000::1", "e000::1", "f000::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    # ISATAP, of both values of its bit
    *("fe80::5efe:7f00:1", "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a00:1", "2606:4700:1:2:0:5efe:10.0.0.1"),
    # zones: interfaces of this machine
    *("fe80::1%lo", "fe80::1%1", "fe80::1%eth0", "2606:4700::1111%lo", "2606:4700::1111%1"),
)
"""Addresses, as a resolver may answer them."""

OUTSIDE = ("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.255.255.255", "128.0.0.1", "172.15.0.1")
OUTSIDE += ("172.32.0.1", "169.253.0.1", "192.0.1.1", "192.167.0.1", "198.17.0.1", "198.20.0.1", "223.255.255.255", "168.63.129.17")
OUTSIDE += ("2606:4700::1111", "2a00:1450::1", "2001:200::1", "2001:4860:4860::8888", "2003::1", "::ffff:1.1.1.1", "64:ff9b::101:101")

LOOPBACK_FORMS = (
    # inet_aton: short, octal, hexadecimal, decimal, with more zeros, in all mixtures
    *("127.1", "127.0.1", "127.0.0.01", "127.000.000.001", "0177.0.0.1", "0177.1", "00177.0.0.01", "0177.0.0.0x1", "017700000001"),
    *("0x7f.0.0.1", "0x7F.1", "0x7f.0x0.0x0.0x1", "0x7f000001", "0X7F000001", "0x0000007f000001", "2130706433", "127.0x1", "127.65536.1"),
    # dots at the end, and what Unicode reads as dots, digits and letters
    *("127.0.0.1.", "127.1.", "2130706433.", "0x7f000001.", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "127.0.0.1。"),
    *(
        "１２７.０.０.１",
        "１２７．１",
        "①②⑦.⓪.⓪.①",
        "¹²⁷.⁰.⁰.¹",
        "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
        "𝟙𝟚𝟟.𝟘.𝟘.𝟙",
        "１２７.1",
        "0ｘ7f.1",
        "٠١٢٧.0.0.1",
        "127.0.0.①",
        "⒈27.0.0.1",
    ),
    # percent-encoded, as browsers decode it
    *("127%2e0%2e0%2e1", "%31%32%37.0.0.1", "127.0.0.1%00", "127.0.0.1%20", "%6c%6f%63alhost"),
    # names of this machine
    *(
        "localhost",
        "LOCALHOST",
        "localhost.",
        "LocalHost.",
        "ｌｏｃａｌｈｏｓｔ",
        "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
        "loc\u00adalhost",
        "localhost.localdomain",
        "ip6-localhost",
    ),
    # IPv6 in brackets, with zones, wrong and half
    *(
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[0000::1]",
        "[::1%25lo]",
        "[::1%lo]",
    ),
    *(
        "[fe80::1%25lo]",
        "[::ffff:127.0.0.1%25lo]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[::1].",
        "[[::1]]",
        "[::1",
        "[127.0.0.1]",
        "[v1.127.0.0.1]",
    ),
)
"""Hosts that a resolver, a browser or a careless check may read as this machine."""

TRICKS = (
    # what stands before `@` is no host, and what looks like the end of the host may be none
    *("http://example.com@127.0.0.1:PORT/", "http://example.com:80@127.0.0.1:PORT/", "http://@127.0.0.1:PORT/", "http://:@127.0.0.1:PORT/"),
    *("http://user:password@127.0.0.1:PORT/", "http://example.com%40127.0.0.1:PORT/", "http://example.com@@127.0.0.1:PORT/"),
    *("http://127.0.0.1:PORT@example.com@127.0.0.1:PORT/", "http://127.0.0.1:PORT\\@example.com/", "http://example.com\\@127.0.0.1:PORT/"),
    *(
        "http://127.0.0.1:PORT#@example.com/",
        "http://127.0.0.1:PORT?@example.com/",
        "http://127.0.0.1:PORT;@example.com/",
        "http://example.com#@127.0.0.1:PORT/",
    ),
    *(
        "http:127.0.0.1:PORT/",
        "http:/127.0.0.1:PORT/",
        "http:///127.0.0.1:PORT/",
        "http:\\\\127.0.0.1:PORT/",
        "http://\\127.0.0.1:PORT/",
        "\\\\127.0.0.1\\share",
    ),
    *(
        "//127.0.0.1:PORT/",
        "/etc/passwd",
        "127.0.0.1:PORT",
        "localhost:PORT",
        "http://127.0.0.1:PORT:80/",
        "http://127.0.0.1: PORT/",
        "http:// 127.0.0.1:PORT/",
    ),
    # line ends, tabs, NUL and other controls
    *(
        "http://127.0.0.1:PORT/\r\nHost: internal\r\n\r\n",
        "http://127.0.0.1\r\n:PORT/",
        "http://127.0.0.1\t:PORT/",
        "http://127.0.0.1\0.example.com:PORT/",
    ),
    *(
        "http://127.0.0.1:PORT/\0",
        "ht\ntp://127.0.0.1:PORT/",
        "\x01http://127.0.0.1:PORT/",
        " http://127.0.0.1:PORT/ ",
        "http://127.0.0.1\x7f:PORT/",
    ),
    *(
        "http://example.com\r\n@127.0.0.1:PORT/",
        "http://127.0.0.1%0d%0a:PORT/",
        "http://127.0.0.1%09:PORT/",
        "http://\u202e127.0.0.1:PORT/",
        "http://\ud800:PORT/",
    ),
    # schemes, sockets of Unix
    *(
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "file:/etc/passwd",
        "FILE:///etc/passwd",
        "ftp://127.0.0.1/",
        "gopher://127.0.0.1:6379/_INFO",
    ),
    *(
        "dict://127.0.0.1:11211/stat",
        "ldap://127.0.0.1/",
        "jar:http://127.0.0.1!/",
        "netdoc:///etc/passwd",
        "tftp://127.0.0.1/x",
        "sftp://127.0.0.1/",
    ),
    *(
        "unix:/var/run/docker.sock",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
        "http://unix:/var/run/docker.sock:/info",
        "unix://localhost/x",
    ),
    *(
        "ws://127.0.0.1:PORT/",
        "wss://127.0.0.1/",
        "data://127.0.0.1/",
        "javascript:alert(1)",
        "blob:http://127.0.0.1/x",
        "view-source:http://127.0.0.1/",
    ),
    *(
        "about:blank",
        "x",
        "",
        " ",
        "http://",
        "https://",
        "http:",
        "http://?",
        "http://#",
        "http:///",
        "https://:443/",
        "url:http://127.0.0.1/",
    ),
    # ports
    *(
        "http://127.0.0.1:0/",
        "http://127.0.0.2:22/",
        "http://127.0.0.2:25/",
        "http://127.0.0.2:53/",
        "http://127.0.0.2:110/",
        "http://127.0.0.2:445/",
        "http://127.0.0.2:0/",
    ),
    *(
        "http://127.0.0.2:6000/",
        "http://127.0.0.2:6667/",
        "http://127.0.0.2:10080/",
        "http://127.0.0.2:2049/",
        "http://127.0.0.2:65536/",
        "http://127.0.0.2:-1/",
        "http://127.0.0.2:x/",
    ),
    *(
        "http://127.0.0.2:99999999999999999999/",
        "http://127.0.0.2:２２/",
        "http://127.0.0.2:+80/",
        "http://127.0.0.2:0x50/",
        "http://127.0.0.2:8 0/",
    ),
    # lengths
    "http://" + "a" * 10_000 + "/",
    "http://" + "a." * 5_000 + "/",
    "http://" + "1" * 5_000 + "/",
    "http://0x" + "0" * 5_000 + "7f000001/",
    "http://[" + ":" * 5_000 + "]/",
    "http://127.0.0.1:PORT/" + "%" * 100_000,
)
"""Whole URLs; `PORT` stands for one at which somebody listens on 127.0.0.1."""


def host_form(address: str) -> str:
    """An address as a URL has it."""
    return f"[{address.replace('%', '%25')}]" if ":" in address else address


def all_urls(port: int) -> list[str]:
    """Every hostile URL, with a port at which somebody listens."""
    hosts = [*map(host_form, INSIDE), *LOOPBACK_FORMS]
    return [*(f"http://{host}:{port}/x" for host in hosts), *(url.replace("PORT", str(port)) for url in TRICKS)]


def local_urls(port: int) -> list[str]:
    """Those for which no resolver outside this machine is asked."""
    others = ("example.com", "localdomain", "ip6-", "unix", "aaaa", "a.a.a", "%6c%6f")
    return [url for url in all_urls(port) if url.isascii() and not any(part in url for part in others)]
