//! Rotary position embedding.

use crate::attention::{RopeStyle, RopeTable};

/// Turns every head of every row in place. `x` is `[rows, heads · head_dim]`; row `r` uses row `r` of the table.
pub fn rope(x: &mut [f32], head_dim: usize, table: &RopeTable) {
    let half = table.half_dim();
    assert!(2 * half <= head_dim && table.num_rows() > 0, "a table for this head");
    let columns = x.len() / table.num_rows();
    assert!(
        columns * table.num_rows() == x.len() && columns.is_multiple_of(head_dim),
        "whole rows of whole heads"
    );
    for (row, x) in x.chunks_exact_mut(columns).enumerate() {
        let (cosines, sines) = table.row(row);
        for head in x.chunks_exact_mut(head_dim) {
            for i in 0..half {
                let (a, b) = match table.style() {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::Halves => (i, i + half),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cosines[i] - y * sines[i];
                head[b] = y * cosines[i] + x * sines[i];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::RopeParams;

    #[test]
    fn a_quarter_turn() {
        let turned = |style, mut x: [f32; 4]| {
            let params = RopeParams {
                style,
                dim: 4,
                base: 10_000.0,
                position_scale: std::f32::consts::FRAC_PI_2,
                frequency_divisors: Vec::new(),
            };
            rope(&mut x, 4, &RopeTable::new(&params, [1].into_iter()));
            x
        };
        let x = turned(RopeStyle::Interleaved, [1.0, 2.0, 3.0, 4.0]);
        assert!((x[0] + 2.0).abs() < 1e-6 && (x[1] - 1.0).abs() < 1e-6);
        let x = turned(RopeStyle::Halves, [1.0, 2.0, 3.0, 4.0]);
        assert!((x[0] + 3.0).abs() < 1e-6 && (x[2] - 1.0).abs() < 1e-6);
    }
}
