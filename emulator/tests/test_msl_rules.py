"""The rules for what only Apple's compiler would refuse: each of them finds its fault."""

import pytest

from tensorplug_emulator import missing
from tensorplug_emulator.evidence import first_launches, launches_of
from tensorplug_emulator.metal import expanded
from tensorplug_emulator.msl_rules import local_bytes, problems
from tensorplug_simt import families  # noqa: F401 - fills the table of lowerings
from tensorplug_simt.dialects.metal import APPLE, metal_source
from tensorplug_testing.tiers import select

SOUND = """
typedef struct { long off; int ne[4]; } region;
typedef struct { region x; int count; } given;
constant const uchar codes[2] = {1, 2};
static inline float first(device const uchar* p, thread float* kept, int at) {
  const float value = *(device const float*)(p + at * 4);
  kept[0] = value;
  const int place = at;
  return value * kept[0] * (at >> place & 3);
}
template <typename T>
static inline T twice(threadgroup const T* p) { return first(0, 0, 1) * p[0]; }
kernel void f(device const uchar* x_base [[buffer(0)]], device uchar* y_base [[buffer(1)]],
              constant given& p [[buffer(2)]], uint3 item [[thread_position_in_threadgroup]]) {
  threadgroup float shared[32 * (4 + 4)];
  threadgroup half4 tile[8][16];
  float kept[2];
  shared[item.x] = first(x_base, kept, p.count);
  for (int i = 0; i < 2 && i < p.count; i++) shared[0] += kept[i] * codes[i];
}
"""


def test_sound_text_has_no_problems():
    assert problems(SOUND) == []
    assert local_bytes(SOUND) == 32 * 8 * 4 + 8 * 16 * 8


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("thread float* kept", "float* kept", "float* kept: no address space"),
        ("(device const float*)", "(const float*)", "const float*: no address space"),
        ("constant given& p", "const given& p", "const given& p: no address space"),
        ("threadgroup const T* p", "const T* p", "const T* p: no address space"),
        ("float kept[2]", "double kept[2]", "double: there are no numbers of 64 bits"),
        ("float kept[2]", "long long kept[2]", "long long: 64 bits are a long"),
        ("float kept[2]", "float kernel[2]", "kernel: a word of the language is used as a name"),
        ("float kept[2]", "static float kept[2]", "f: a static variable"),
        ("float kept[2]", "float (*kept)(int)", "there are no pointers to functions"),
        ("inline float first(", "inline float dot(", "dot: a function of Metal's has this name"),
        ("kept[0] = value;", "goto end; end:", "goto: there is no goto"),
        ("kept[0] = value;", "throw 1;", "throw: there are no exceptions"),
        ("kept[0] = value;", "kept[0] = first(p, kept, 1);", "first: calls itself"),
        ("kept[0] = value;", "kept[0] = twice(0);", "first: calls itself"),
        ("kept[0] = value;", "threadgroup int t[2];", "threadgroup array t: first is not a kernel"),
        ("[[buffer(1)]]", "[[buffer(0)]]", "kernel f: two buffers have one place"),
        ("[[buffer(1)]]", "[[buffer(31)]]", "kernel f: buffers beyond the 31 places there are"),
        ("[[buffer(1)]]", "[[stage_in]]", "kernel f: y_base has the unknown attribute stage_in"),
        (" [[buffer(1)]]", "", "kernel f: parameter 'device uchar* y_base' has no attribute"),
        ("tile[8][16]", "tile[32][128]", "33792 bytes of threadgroup memory, at most 32768"),
        ("half4 tile[8]", "given tile[8]", "array tile: the size of given is not known"),
        ("tile[8][16]", "tile[8][n]", "threadgroup array tile: its length 'n' is not a number"),
        ("half4 tile[8][16]", "int t[1] = {1}", "array t: it must not have a first value"),
        ("constant const uchar", "const uchar", "codes: a variable of the program that is not"),
        ("kernel void", "void", "the text has no kernel"),
    ],
)
def test_planted_fault_is_found(before, after, problem):
    assert before in SOUND

    assert problem in "\n".join(problems(SOUND.replace(before, after)))


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_shared_texts_have_no_problems():
    launches = first_launches(launches_of(select("smoke"), APPLE))

    found = {launch.kernel.name: problems(expanded(metal_source(launch))) for launch in launches}

    assert len(found) > 60
    assert {name: lines for name, lines in found.items() if lines} == {}
