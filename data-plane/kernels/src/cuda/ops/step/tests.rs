use super::*;

const LIMITS: StepLimits = StepLimits {
    tokens: 200,
    rows: 4,
    seats: 8,
    max_blocks: 64,
    pages: 100,
    splits: 3,
    heads_per_kv: 4,
    window: None,
};

fn written(
    limits: &StepLimits,
    rows: &[StepRow<'_>],
    samples: &[StepSample],
    entries: &[PageEntry],
) -> (Layout, Vec<i32>) {
    let layout = Layout::new(limits);
    let mut ints = vec![77; layout.len];
    Writer { ints: &mut ints, limits, layout: &layout }.write(rows, samples, entries);
    (layout, ints)
}

#[test]
fn a_step_of_decode_and_prefill() {
    let chunk: Vec<u32> = (100..140).collect();
    let rows = [
        StepRow { seat: 3, start_position: 300, tokens: None },
        StepRow { seat: 1, start_position: 16, tokens: Some(&chunk) },
        // Two splits, and only one has room: it takes the path of prefill.
        StepRow { seat: 2, start_position: 511, tokens: Some(&[7]) },
    ];
    let samples = [StepSample { row: 2, mask: Some(0) }, StepSample { row: 0, mask: None }];
    let (layout, ints) = written(&LIMITS, &rows, &samples, &[PageEntry { seat: 1, block: 2, page: 99 }]);
    let array = |at: usize, len: usize| &ints[at..at + len];
    assert_eq!(array(layout.rows, 16), [3, 300, 0, 1, 1, 16, 1, 40, 2, 511, 41, 1, 0, 0, 0, 0]);
    assert_eq!(array(layout.row_splits, 8), [0, 2, 2, 0, 2, 0, 0, 0]);
    assert_eq!(array(layout.splits, 4), [0, 0, 0, 1]);
    // 160 query rows of the chunk are three tiles of 64; the last row has four query rows.
    assert_eq!(array(layout.tiles, 8), [1, 0, 1, 1, 1, 2, 2, 0]);
    assert_eq!(array(layout.counts, 3), [2, 4, 1]);
    assert_eq!(array(layout.tokens, 3), [-1, 100, 101]);
    assert_eq!(array(layout.tokens + 40, 2), [139, 7]);
    assert_eq!(array(layout.token_row, 2), [0, 1]);
    assert_eq!(array(layout.token_row + 40, 3), [1, 2, -1]);
    assert_eq!(ints[layout.token_row + 199], -1);
    assert_eq!(array(layout.token_position, 3), [300, 16, 17]);
    assert_eq!(array(layout.samples, 12), [41, 2, 512, 0, 0, 3, 301, -1, -1, 0, 0, -1]);
    assert_eq!(array(layout.entries, 3), [1, 2, 99]);
}

#[test]
fn a_window_leaves_out_the_splits_behind_it() {
    let limits = StepLimits { window: Some(256), ..LIMITS };
    let rows = [StepRow { seat: 0, start_position: 767, tokens: None }];
    let (layout, ints) = written(&limits, &rows, &[], &[]);
    assert_eq!(ints[layout.splits..layout.splits + 2], [0, 2]);
    assert_eq!(ints[layout.row_splits..layout.row_splits + 2], [0, 1]);
}

#[test]
fn arrays_do_not_overlap_at_the_limits() {
    let tokens = vec![5; 197];
    let mut rows = vec![StepRow { seat: 0, start_position: 0, tokens: Some(&tokens) }];
    rows.extend([StepRow { seat: 1, start_position: 0, tokens: None }; 3]);
    let samples = [StepSample { row: 0, mask: None }; 4];
    let layout = Layout::new(&LIMITS);
    let entries = vec![PageEntry { seat: 7, block: 63, page: 99 }; layout.max_entries];
    let (layout, ints) = written(&LIMITS, &rows, &samples, &entries);
    assert_eq!(ints[layout.counts..layout.counts + 3], [3, 13, int(layout.max_entries)]);
    assert_eq!(ints[layout.token_position + 199], 0);
    assert_eq!(ints.len(), layout.token_position + 200);
}

#[test]
#[should_panic(expected = "a page of the pool")]
fn a_page_beyond_the_pool_is_a_bug() {
    written(&LIMITS, &[], &[], &[PageEntry { seat: 0, block: 0, page: 100 }]);
}
