import pytest

from fluence.errors import InvalidInput
from fluence.model import hostlist


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", ""),
        ("node1", "node1"),
        ("node0 node1", "node[0-1]"),
        ("a0 a1 a2 a3 a7 b2", "a[0-3,7],b2"),
        ("b2 a1 a0", "b2,a[1,0]"),
        ("n9 n10 n11", "n[9-11]"),
        ("n09 n10", "n[09-10]"),
        ("n099 n100", "n[099-100]"),
        ("n99 n100", "n[99-100]"),
        ("n009 n10", "n[009,10]"),
        ("n9 n010", "n[9,010]"),
        ("n1 n1 n2", "n[1,1-2]"),
        ("login login", "login,login"),
        ("x x1 x2 x", "x,x[1-2],x"),
        ("1 2 9", "[1-2,9]"),
        ("rack-1a-2 rack-1a-3", "rack-1a-[2-3]"),
        ("n1-eth0 n2-eth0", "n1-eth0,n2-eth0"),
        ("n99999999999999999999999", "n99999999999999999999999"),
        ("12", "12"),
    ],
)
def test_encode(names: str, text: str) -> None:
    assert hostlist.encode(names.split()) == text
    assert hostlist.decode(text) == names.split()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (" a,,b\tc ", "a b c"),
        ("p[00-3]p", "p00p p01p p02p p03p"),
        ("n[98-101]", "n98 n99 n100 n101"),
        ("r[1-2]n[3-4]", "r1n3 r1n4 r2n3 r2n4"),
        ("f00[7-8,10]", "f007 f008 f0010"),
        ("n[2,1,2]", "n2 n1 n2"),
    ],
)
def test_decode(text: str, names: str) -> None:
    assert hostlist.decode(text) == names.split()
    hosts = hostlist.parse(text)
    assert hosts.size == len(names.split())
    assert all(name in hosts for name in names.split())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tst0", "tst"), ("tst", "tst0"), ("n[1-5]", "n3-eth0"), ("[0-5]i", "0"), ("i[0-5]", "i00"),
        ("i[00-05]", "i0"), ("n[1-5]", "n"), ("n[1-5]", "n6"), ("n[1-5]", "n" + "1" * 50),
        ("n[1-5]", "n²"), ("", ""),
    ],
)  # fmt: skip
def test_names_that_are_not_in_it(text: str, name: str) -> None:
    assert name not in hostlist.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "no number"), ("n[]", "no number"), ("n[", "unbalanced"), ("n[1,3", "unbalanced"),
        ("n[[1,3]", "no number"), ("n]", "unbalanced"), ("n[x-y]", "no number"), ("n[0-1,2--5]", "no number"),
        ("n[3-1]", "descends"), ("n[0-1048576]", "over 1048576"), ("a[1]]", "unbalanced"),
        ("n[0-999][0-9999]", "holds 10000000 hosts"), ("[1]" * 9, "brackets in one name"),
    ],
)  # fmt: skip
def test_decode_names_the_fault(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        hostlist.decode(text)


def test_a_huge_list_can_be_asked_without_spelling_it_out() -> None:
    hosts = hostlist.parse("r[0-999999]c[0-999999]n[000-999]")
    assert "r5c77n042" in hosts
    assert "r5c77n42" not in hosts
    assert hosts.size == 10**15


@pytest.mark.parametrize("name", ["", "a,b", "a b", "n[1]"])
def test_encode_refuses_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="no host name"):
        hostlist.encode([name])
