//! Every implementation against the generic one, bit for bit.

use super::*;
use crate::test_data::Random;

/// All operations on some inputs, as bits.
struct Everything<'a> {
    floats: &'a [f32],
    halves: &'a [u16],
    codes: &'a [u8],
    quads: &'a [i32],
}

impl Kernel for Everything<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let mut out = Vec::new();
        let mut keep = |value: S::F| out.extend(s.to_array(value).map(f32::to_bits));
        // SAFETY: each slice holds at least three vectors of its element type.
        let (a, b, c, h, bf) = unsafe {
            let at = |i: usize| self.floats[16 * i..][..16].as_ptr();
            let halves = self.halves[..16].as_ptr();
            (s.load(at(0)), s.load(at(1)), s.load(at(2)), s.load_half(halves), s.load_bf16(halves))
        };
        for value in [
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.max(a, b),
            s.min(a, b),
            s.abs(a),
            s.fma(a, b, c),
            s.select(0b1010_0110_0000_1111, a, b),
            s.splat(1.5),
            h,
            bf,
        ] {
            keep(value);
        }
        let hundred = s.mul(a, s.splat(100.0));
        let rounded = s.round(hundred);
        keep(s.to_float(rounded));
        keep(s.power_of_two(rounded));
        keep(s.to_float(s.shift_left::<7>(rounded)));
        let integers: [i32; 16] = std::array::from_fn(|i| i32::try_from(i).unwrap() * 1_000_003 - 7);
        // SAFETY: sixteen integers.
        let integers = unsafe { s.load_i(integers.as_ptr()) };
        keep(s.to_float(s.add_i(integers, s.splat_i(-5))));
        let mut bytes = [0_i8; 16];
        let mut halves = [0_u16; 16];
        // SAFETY: sixteen elements each.
        unsafe {
            s.store_bytes(bytes.as_mut_ptr(), rounded);
            s.store_half(halves.as_mut_ptr(), s.mul(a, b));
        }
        let mut sums = (s.splat_i(3), s.splat_i(0));
        let mut total = 0;
        for (codes, quad) in self.codes.chunks_exact(64).zip(self.quads) {
            // SAFETY: the chunk is 64 bytes.
            let codes = unsafe { s.load_codes(codes.as_ptr()) };
            sums.0 = s.dot(sums.0, s.low_nibbles(codes), *quad);
            sums.0 = s.dot(sums.0, s.high_nibbles(codes), *quad);
            sums.1 = s.dot_bytes(sums.1, codes, *quad);
            total += quad.to_le_bytes().map(|byte| i32::from(byte.cast_signed())).iter().sum::<i32>();
        }
        if S::BYTES_ARE_BIASED {
            sums.1 = s.add_i(sums.1, s.splat_i(128 * total));
        }
        keep(s.to_float(sums.0));
        keep(s.to_float(sums.1));
        let scalars = [s.reduce_add(a), s.reduce_max(a)];
        out.extend(scalars.map(f32::to_bits));
        out.push(s.reduce_add_i(rounded).cast_unsigned());
        out.extend(bytes.map(|byte| u32::from(byte.cast_unsigned())));
        out.extend(halves.map(u32::from));
        out
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let mut random = Random(3);
    for _ in 0..50 {
        let floats = random.floats(48);
        let halves: Vec<u16> = (0..16).map(|_| u16::try_from(random.next() & 0x7bff).unwrap()).collect();
        let mut codes: Vec<u8> = (0..640).map(|_| random.next().to_le_bytes()[0]).collect();
        codes[..64].fill(0);
        codes[64..128].fill(255);
        let quads: Vec<i32> =
            (0..10)
                .map(|i| {
                    if i < 4 {
                        [0x7f7f_7f7f, 0x8181_8181_u32.cast_signed()][i % 2]
                    } else {
                        quad(&mut random)
                    }
                })
                .collect();
        let on = |isa| {
            dispatch(isa, Everything { floats: &floats, halves: &halves, codes: &codes, quads: &quads })
        };
        let expected = on(Isa::Generic);
        for isa in Isa::available() {
            assert_eq!(on(isa), expected, "{isa:?}");
        }
    }
}

/// Four bytes of −127 ..= 127.
fn quad(random: &mut Random) -> i32 {
    let byte = |byte: u8| if byte == 0x80 { 0x81 } else { byte };
    i32::from_le_bytes([0, 8, 16, 24].map(|shift| byte((random.next() >> shift).to_le_bytes()[0])))
}
