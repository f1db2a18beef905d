//! The tests once more in a process that runs under the address sanitizer, with kernels and stand-in compiled for it and for the
//! undefined-behaviour sanitizer; and that these find what they are there to find.

use std::path::Path;
use std::process::{Command, Output};

use weir_kernels::cuda::ops::{ActivationType, Gate, Output as Product, StepRow, StepSample, Weight};

use crate::support::{Fixture, limits, step};

/// Runs this test program again, under the sanitizers.
fn run(arguments: &[&str]) -> Output {
    let library = Command::new("g++").arg("-print-file-name=libasan.so").output().unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env("LD_PRELOAD", String::from_utf8(library.stdout).unwrap().trim())
        // What the process keeps to its end is no leak; the stacks of fibers are not those that it would check for use after return.
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
        .env("UBSAN_OPTIONS", "print_stacktrace=1")
        .output()
        .unwrap()
}

#[test]
fn kernels_stay_within_their_memory_and_do_nothing_undefined() {
    // Without those that ask something else of the same launches, or for more of them.
    let skipped = ["sanitizers::", "do_not_depend", "drawn_by_their_probabilities"];
    let output = run(&skipped.map(|tests| ["--skip", tests]).concat());
    let (tests, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{tests}\n{errors}");
    for test in [
        "matmul::products_of_more_rows",
        "matmul::products_of_random_shapes",
        "attention::attention_of_random_rows",
    ] {
        assert!(tests.contains(&format!("test {test} ... ok")), "{tests}");
    }
}

#[test]
fn planted_faults_are_found() {
    for (fault, finding, kernel) in [
        ("read_behind_global_memory", "AddressSanitizer: use-after-poison", "gather_rows"),
        (
            "read_behind_dynamic_shared_memory",
            "AddressSanitizer: use-after-poison",
            "matmul_dense_bf16_tiled",
        ),
        ("read_behind_static_shared_memory", "index 4 out of bounds", "rms_norm_bf16"),
        ("undefined_shift", "shift exponent 32 is too large", "silu_mul_bf16"),
    ] {
        let output = run(&["--exact", &format!("sanitizers::{fault}")]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{fault} was not found");
        assert!(errors.contains(finding) && errors.contains(kernel), "{fault}: {errors}");
    }
}

/// The faulty kernels, in the processes that [`planted_faults_are_found`] starts for one test each, to end there. Elsewhere nothing
/// watches, and the fault is left alone.
fn faulty() -> Option<Fixture> {
    let faults = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/numerics/faults.cu");
    weir_stand_in::is_sanitized().then(|| Fixture::with_kernels(&[Path::new(faults)]))
}

#[test]
fn read_behind_global_memory() {
    let Some(fixture) = faulty() else { return };
    let device = &fixture.device;
    let rows = [StepRow { seat: 0, start_position: 0, tokens: Some(&[1, 2]) }];
    let step = step(device, limits(2, 1), &rows, &[StepSample { row: 0, mask: None }]);
    let (hidden, mut out) = (device.zeros(2 * 4).unwrap(), device.zeros(4).unwrap());
    fixture.operations(ActivationType::Bf16).gather(&hidden, &step, 1, 4, &mut out).unwrap();
    device.read(&out).unwrap();
}

#[test]
fn read_behind_dynamic_shared_memory() {
    let Some(fixture) = faulty() else { return };
    let device = &fixture.device;
    let weight = Weight::dense(device, ActivationType::Bf16, &[0.0; 2 * 32], (2, 32)).unwrap();
    let (x, mut out) = (device.zeros(65 * 32).unwrap(), device.zeros(65 * 2).unwrap());
    let operations = fixture.operations(ActivationType::Bf16);
    operations.matmul(&x, 65, &weight, None, Product::Single(&mut out), (2, 0)).unwrap();
    device.read(&out).unwrap();
}

#[test]
fn read_behind_static_shared_memory() {
    let Some(fixture) = faulty() else { return };
    let device = &fixture.device;
    let (x, weight, mut out) = (device.zeros(4).unwrap(), device.zeros(4).unwrap(), device.zeros(4).unwrap());
    fixture.operations(ActivationType::Bf16).rms_norm(&x, 1, &weight, 1e-5, &mut out).unwrap();
    device.read(&out).unwrap();
}

#[test]
fn undefined_shift() {
    let Some(fixture) = faulty() else { return };
    let device = &fixture.device;
    let (gate_up, mut out) = (device.zeros(16).unwrap(), device.zeros(8).unwrap());
    fixture.operations(ActivationType::Bf16).gated(Gate::Silu, &gate_up, 1, 8, &mut out).unwrap();
    device.read(&out).unwrap();
}
