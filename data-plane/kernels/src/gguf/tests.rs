//! Well-formed, truncated and hostile files.

use proptest::prelude::*;

use super::*;

/// Writes GGUF files field by field, so that tests can lie in any field.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn header(version: u32, tensors: u64, entries: u64) -> Self {
        let mut writer = Self(b"GGUF".to_vec());
        writer.u32(version).u64(tensors).u64(entries);
        writer
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        self.u64(text.len() as u64);
        self.0.extend(text);
        self
    }

    fn tensor(&mut self, name: &str, dimensions: &[u64], code: u32, offset: u64) -> &mut Self {
        self.text(name.as_bytes()).u32(u32::try_from(dimensions.len()).unwrap());
        dimensions.iter().for_each(|dimension| {
            self.u64(*dimension);
        });
        self.u32(code).u64(offset)
    }

    fn data(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32), 0);
        self.0.extend(bytes);
        self.0.clone()
    }
}

fn small_file() -> Vec<u8> {
    let mut writer = Writer::header(3, 2, 5);
    writer.text(b"general.architecture").u32(8).text(b"llama");
    writer.text(b"count").u32(4).u32(30);
    writer.text(b"epsilon").u32(6).u32(1e-5_f32.to_bits());
    writer.text(b"flag").u32(7);
    writer.0.push(1);
    writer.text(b"tokens").u32(9).u32(8).u64(2).text(b"a").text("é".as_bytes());
    writer.tensor("norm", &[2], 0, 0).tensor("weight", &[32, 2], 8, 32);
    let mut data = [0_u8; 32 + 68];
    data[..4].copy_from_slice(&1.5_f32.to_le_bytes());
    data[32..].iter_mut().enumerate().for_each(|(i, byte)| *byte = u8::try_from(i).unwrap());
    writer.data(&data)
}

#[test]
fn a_small_file_is_read() {
    let file = GgufFile::from_bytes(small_file()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.text("general.architecture").unwrap(), "llama");
    assert_eq!(metadata.u32("count").unwrap(), 30);
    assert_eq!(metadata.f32("epsilon").unwrap(), 1e-5);
    assert!(metadata.boolean("flag").unwrap());
    assert_eq!(metadata.texts("tokens").unwrap(), ["a", "é"]);
    assert_eq!(metadata.text("absent").unwrap_err(), MetadataError::Missing { key: "absent".into() });
    assert!(matches!(metadata.text("count"), Err(MetadataError::Type { .. })));
    let (ggml_type, info, bytes) = file.tensor_view("weight").unwrap();
    assert_eq!((ggml_type, info.rows(), info.columns(), bytes.len()), (GgmlType::Q8_0, 2, 32, 68));
    assert_eq!(bytes[67], 67);
    assert_eq!(file.tensor_data(&file.tensors()[0])[..4], 1.5_f32.to_le_bytes());
}

#[test]
fn a_mapped_file_reads_the_same() {
    let directory = std::env::temp_dir().join(format!("weir-gguf-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("small.gguf");
    std::fs::write(&path, small_file()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.tensor_view("weight").unwrap().2[67], 67);
    std::fs::write(directory.join("empty"), b"").unwrap();
    assert!(matches!(GgufFile::open(&directory.join("empty")), Err(GgufError::Truncated { .. })));
    assert!(matches!(GgufFile::open(&directory.join("absent")), Err(GgufError::Io(_))));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn every_truncation_is_an_error() {
    let whole = small_file();
    for len in 0..whole.len() {
        assert!(GgufFile::from_bytes(whole[..len].to_vec()).is_err(), "cut at {len}");
    }
}

fn refused(writer: &mut Writer) -> GgufError {
    GgufFile::from_bytes(writer.data(&[0; 64])).unwrap_err()
}

#[test]
fn lies_are_named() {
    let error = GgufFile::from_bytes(b"GGML\x03\0\0\0".to_vec()).unwrap_err();
    assert!(matches!(error, GgufError::Magic));
    assert!(matches!(refused(&mut Writer::header(1, 0, 0)), GgufError::Version { version: 1 }));
    let big_endian = 3_u32.swap_bytes();
    assert!(matches!(refused(&mut Writer::header(big_endian, 0, 0)), GgufError::Version { .. }));
    assert!(matches!(refused(&mut Writer::header(3, u64::MAX, 0)), GgufError::Limit { .. }));
    assert!(matches!(refused(&mut Writer::header(3, 0, u64::MAX)), GgufError::Limit { .. }));
    let tensor = |dimensions: &[u64], code, offset| {
        refused(Writer::header(3, 1, 0).tensor("w", dimensions, code, offset))
    };
    assert!(matches!(tensor(&[], 0, 0), GgufError::Shape { .. }));
    assert!(matches!(tensor(&[4, 0], 0, 0), GgufError::Shape { .. }));
    assert!(matches!(tensor(&[1; 5], 0, 0), GgufError::Shape { .. }));
    assert!(matches!(tensor(&[1 << 32, 1 << 33], 0, 0), GgufError::Shape { .. }));
    assert!(matches!(tensor(&[1 << 62, 2], 0, 0), GgufError::Shape { .. }));
    assert!(matches!(tensor(&[33], 8, 0), GgufError::Shape { .. }));
    assert!(matches!(tensor(&[4], 39, 0), GgufError::TensorType { code: 39, .. }));
    assert!(matches!(tensor(&[17], 0, 0), GgufError::TensorBounds { .. }));
    assert!(matches!(tensor(&[1], 0, 16), GgufError::TensorBounds { .. }));
    assert!(matches!(tensor(&[1], 0, u64::MAX - 31), GgufError::TensorBounds { .. }));
    let twice = refused(Writer::header(3, 2, 0).tensor("w", &[1], 0, 0).tensor("w", &[1], 0, 0));
    assert!(matches!(twice, GgufError::Duplicate { what: "tensor", .. }));
}

#[test]
fn lies_in_metadata_are_named() {
    let value = |code: u32, bytes: &[u8]| {
        let mut writer = Writer::header(3, 0, 1);
        writer.text(b"k").u32(code);
        writer.0.extend(bytes);
        GgufFile::from_bytes(writer.0).unwrap_err()
    };
    assert!(matches!(value(13, &[0; 8]), GgufError::ValueType { code: 13 }));
    assert!(matches!(value(7, &[2]), GgufError::Bool { value: 2 }));
    assert!(matches!(value(8, &u64::MAX.to_le_bytes()), GgufError::Limit { .. }));
    assert!(matches!(value(8, &100_u64.to_le_bytes()), GgufError::Truncated { .. }));
    assert!(matches!(value(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]), GgufError::Utf8 { .. }));
    let array = |code: u32, len: u64| value(9, &[&code.to_le_bytes()[..], &len.to_le_bytes()].concat());
    assert!(matches!(array(9, 1), GgufError::ValueType { code: 9 }));
    assert!(matches!(array(8, u64::MAX), GgufError::Truncated { .. }));
    assert!(matches!(array(12, 1 << 61), GgufError::Truncated { .. }));
    let mut twice = Writer::header(3, 0, 2);
    twice.text(b"k").u32(4).u32(1).text(b"k").u32(4).u32(2);
    assert!(matches!(refused(&mut twice), GgufError::Duplicate { what: "key", .. }));
    let mut alignment = Writer::header(3, 0, 1);
    alignment.text(b"general.alignment").u32(4).u32(48);
    assert!(matches!(refused(&mut alignment), GgufError::Alignment { alignment: 48 }));
}

proptest! {
    /// Any bytes after a good start, and any single change to a good file: an error or a file whose tensors lie inside it.
    #[test]
    fn no_bytes_can_hurt(at in 0..200_usize, with in any::<[u8; 8]>(), noise in prop::collection::vec(any::<u8>(), 0..256)) {
        let mut changed = small_file();
        let end = (at + 8).min(changed.len());
        if at < end {
            changed[at..end].copy_from_slice(&with[..end - at]);
        }
        let noisy = [&Writer::header(3, 3, 3).0[..], &noise].concat();
        for bytes in [changed, noisy] {
            if let Ok(file) = GgufFile::from_bytes(bytes) {
                for info in file.tensors() {
                    prop_assert_eq!(file.tensor_data(info).len(), info.data_bytes());
                }
            }
        }
    }
}
