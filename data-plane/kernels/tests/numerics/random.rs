//! Pseudo-random inputs: the crate's generator, and what only these tests draw from it.

#[path = "../../src/random.rs"]
mod generator;

pub(crate) use generator::Random;

impl Random {
    /// Uniform in 0 .. `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Uniform in −`scale` .. `scale`.
    pub(crate) fn floats_within(&mut self, scale: f32, len: usize) -> Vec<f32> {
        self.floats(len).into_iter().map(|value| value * scale).collect()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// 0 .. `len` in a random order.
    pub(crate) fn permutation(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        for i in (1..len).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
