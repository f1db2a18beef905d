//! Loops over a constant number of rows, written out, so that each row's sum is a register and not a stack slot.
//!
//! The compiler unrolls such loops by itself only while the body is small, and a matrix kernel's is not.

/// `for row in 0..COUNT { body }` for a constant `COUNT` of at most 16.
macro_rules! for_each_row {
    ($row:ident in 0..$count:ident $body:block) => {
        for_each_row!(@ $row $count $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    };
    (@ $row:ident $count:ident $body:block $($index:literal)*) => {
        $(
            if $index < $count {
                let $row: usize = $index;
                $body
            }
        )*
    };
}

pub(super) use for_each_row;
