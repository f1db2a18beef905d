//! Copies of pages within the pool and to the host, and the block tables.

use std::time::Duration;

use weir_kernels::cuda::ops::{DevicePages, PageEntry, StepInputs, StepLimits};

use crate::random::Random;
use crate::support::{ACTIVATIONS, Fixture, limits};

const NUM_PAGES: usize = 7;

fn page_limits() -> StepLimits {
    StepLimits { pages: NUM_PAGES, max_blocks: 5, ..limits(32, 3) }
}

/// A pool of these bytes.
fn pages_of(fixture: &Fixture, page_bytes: usize, bytes: &[u8]) -> DevicePages {
    let device = &fixture.device;
    let mut pages = DevicePages::new(device, page_bytes, NUM_PAGES, (3, 5), 1).unwrap();
    let mut host = device.pinned(bytes.len()).unwrap();
    host.elements().unwrap().copy_from_slice(bytes);
    for page in 0..NUM_PAGES {
        pages.page_from_host(device, &mut host, page * page_bytes, page).unwrap();
    }
    pages
}

/// The pool's bytes, the pages brought back in another order than they lie in.
fn read(fixture: &Fixture, page_bytes: usize, pages: &DevicePages) -> Vec<u8> {
    let device = &fixture.device;
    let mut host = device.pinned(NUM_PAGES * page_bytes).unwrap();
    for page in 0..NUM_PAGES {
        pages.page_to_host(device, page, &mut host, (page + 2) % NUM_PAGES * page_bytes).unwrap();
    }
    device.record().unwrap().wait(Duration::from_secs(60)).unwrap();
    let mut bytes = host.elements().unwrap().to_vec();
    bytes.rotate_left(2 * page_bytes);
    bytes
}

/// Each copy sees what the ones before it have written.
#[test]
fn pages_are_copied_in_the_order_of_the_list() {
    let fixture = Fixture::new();
    let copies = [(0, 3), (3, 5), (1, 3), (6, 0), (2, 2), (5, 4)];
    // One vector; less than a block copies; more, and no multiple of it.
    for page_bytes in [16, 4080, 12_304] {
        let bytes = Random(page_bytes as u64).bytes(NUM_PAGES * page_bytes);
        let copied = fixture.in_every_order(|| {
            let operations = fixture.operations(ACTIVATIONS[0]);
            let mut pages = pages_of(&fixture, page_bytes, &bytes);
            let mut step = StepInputs::new(&fixture.device, page_limits(), 1).unwrap();
            step.submit(&fixture.device, &[], &[], &[], &copies).unwrap();
            operations.copy_pages(&step, &mut pages).unwrap();
            read(&fixture, page_bytes, &pages)
        });
        let mut expected = bytes;
        for (from, to) in copies {
            let from = from as usize * page_bytes;
            expected.copy_within(from..from + page_bytes, to as usize * page_bytes);
        }
        assert!(copied == expected, "{page_bytes} bytes a page");
    }
}

/// Whole tables, then what steps bring; nothing else changes.
#[test]
fn block_tables_get_the_steps_entries() {
    let fixture = Fixture::new();
    let entry = |seat, block, page| PageEntry { seat, block, page };
    let steps = [
        vec![entry(0, 0, 3), entry(2, 4, 6), entry(1, 3, 1)],
        Vec::new(),
        vec![entry(0, 1, 5), entry(2, 4, 2)],
    ];
    let tables = fixture.in_every_order(|| {
        let device = &fixture.device;
        let operations = fixture.operations(ACTIVATIONS[0]);
        let mut pages = DevicePages::new(device, 16, NUM_PAGES, (3, 5), 2).unwrap();
        let mut step = StepInputs::new(device, page_limits(), steps.len()).unwrap();
        pages.set_tables(device, &[(2, &[4, 4]), (1, &[6; 5])]).unwrap();
        for entries in &steps {
            step.submit(device, &[], &[], entries, &[]).unwrap();
            operations.set_block_tables(&step, &mut pages).unwrap();
        }
        pages.set_tables(device, &[(0, &[2])]).unwrap();
        device.read(pages.block_tables()).unwrap()
    });
    assert_eq!(tables, [2, 5, 0, 0, 0, 6, 6, 6, 1, 6, 4, 4, 0, 0, 2]);
}
