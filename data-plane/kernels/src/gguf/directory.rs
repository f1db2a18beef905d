//! Header, metadata and tensor directory of a GGUF file, with every tensor's bytes checked to lie inside the file.

use std::collections::HashMap;
use std::ops::Range;

use super::reader::Reader;
use super::{GgufError, Metadata, MetadataError};
use crate::quant::GgmlType;

/// Most metadata entries accepted: real files have some dozens.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;
/// Most tensors accepted: the largest models (one tensor an expert, unmerged) have some tens of thousands.
pub const MAX_TENSORS: u64 = 1 << 18;
/// GGML's own limit on dimensions.
const MAX_DIMENSIONS: u32 = 4;
/// Alignment of the data section where the file names none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// One entry of the tensor directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, unique in the file.
    pub name: String,
    /// How its elements are stored.
    pub ggml_type: GgmlType,
    /// Dimensions, fastest first (`[columns, rows, …]`), each at least 1.
    pub dimensions: Vec<u64>,
    /// Where its bytes lie in the file.
    pub(super) range: Range<usize>,
}

impl TensorInfo {
    /// Length of a row (the first dimension).
    pub fn columns(&self) -> usize {
        usize::try_from(self.dimensions[0])
            .expect("the tensor's bytes fit the file, so its elements fit usize")
    }

    /// Number of rows (the product of the other dimensions).
    pub fn rows(&self) -> usize {
        let rows: u64 = self.dimensions[1..].iter().product();
        usize::try_from(rows).expect("the tensor's bytes fit the file, so its elements fit usize")
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.rows() * self.columns()
    }

    /// Length of its data.
    pub fn data_bytes(&self) -> usize {
        self.range.len()
    }
}

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Directory {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader::new(bytes);
        if reader.take(4, "the magic number")? != b"GGUF" {
            return Err(GgufError::Magic);
        }
        let version = reader.u32("the version")?;
        if version != 2 && version != 3 {
            return Err(GgufError::Version { version });
        }
        let num_tensors = limited(reader.u64("the tensor count")?, "the tensor count", MAX_TENSORS)?;
        let num_entries =
            limited(reader.u64("the metadata count")?, "the metadata count", MAX_METADATA_ENTRIES)?;
        let metadata = Metadata::parse(&mut reader, num_entries)?;
        let alignment = alignment(&metadata)?;

        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        for index in 0..num_tensors {
            let entry = Entry::parse(&mut reader)?;
            let previous = by_name.insert(entry.name.clone(), usize::try_from(index).unwrap_or(usize::MAX));
            if previous.is_some() {
                return Err(GgufError::Duplicate { what: "tensor", name: shorten(&entry.name) });
            }
            tensors.push(entry);
        }
        let data_start = (reader.offset() as u64).next_multiple_of(alignment);
        let tensors = tensors
            .into_iter()
            .map(|entry| entry.place(data_start, alignment, bytes.len()))
            .collect::<Result<_, _>>()?;
        Ok(Self { metadata, tensors, by_name })
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }
}

fn limited(actual: u64, what: &'static str, limit: u64) -> Result<u64, GgufError> {
    if actual > limit { Err(GgufError::Limit { what, actual, limit }) } else { Ok(actual) }
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let alignment = match metadata.unsigned("general.alignment") {
        Ok(alignment) => alignment,
        Err(MetadataError::Missing { .. }) => DEFAULT_ALIGNMENT,
        Err(MetadataError::Type { .. }) => 0,
    };
    if alignment.is_power_of_two() && (8..=4096).contains(&alignment) {
        Ok(alignment)
    } else {
        Err(GgufError::Alignment { alignment })
    }
}

/// A directory entry before its place in the file is known (the data section starts after the last entry).
struct Entry {
    name: String,
    ggml_type: GgmlType,
    dimensions: Vec<u64>,
    offset: u64,
    bytes: u64,
}

impl Entry {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, GgufError> {
        const WHAT: &str = "a tensor's entry";
        let name = reader.name("a tensor's name")?;
        let num_dimensions = reader.u32(WHAT)?;
        if num_dimensions == 0 || num_dimensions > MAX_DIMENSIONS {
            return Err(GgufError::Shape { name: shorten(&name), dimensions: Vec::new() });
        }
        let mut dimensions = Vec::new();
        for _ in 0..num_dimensions {
            dimensions.push(reader.u64(WHAT)?);
        }
        let code = reader.u32(WHAT)?;
        let offset = reader.u64(WHAT)?;
        let Some(ggml_type) = GgmlType::from_code(code) else {
            return Err(GgufError::TensorType { name: shorten(&name), code });
        };
        match data_bytes(ggml_type, &dimensions) {
            Some(bytes) => Ok(Self { name, ggml_type, dimensions, offset, bytes }),
            None => Err(GgufError::Shape { name: shorten(&name), dimensions }),
        }
    }

    fn place(self, data_start: u64, alignment: u64, file_bytes: usize) -> Result<TensorInfo, GgufError> {
        let range = data_start
            .checked_add(self.offset)
            .filter(|_| self.offset.is_multiple_of(alignment))
            .and_then(|start| Some((start, start.checked_add(self.bytes)?)))
            .and_then(|(start, end)| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?))
            .filter(|range| range.end <= file_bytes);
        match range {
            Some(range) => Ok(TensorInfo {
                name: self.name,
                ggml_type: self.ggml_type,
                dimensions: self.dimensions,
                range,
            }),
            None => Err(GgufError::TensorBounds {
                name: shorten(&self.name),
                offset: self.offset,
                bytes: self.bytes,
            }),
        }
    }
}

/// Bytes of a tensor of these dimensions, if they are possible: no zero, whole blocks a row, no overflow.
fn data_bytes(ggml_type: GgmlType, dimensions: &[u64]) -> Option<u64> {
    let columns = *dimensions.first()?;
    let block = ggml_type.block_elements() as u64;
    if dimensions.contains(&0) || !columns.is_multiple_of(block) {
        return None;
    }
    let elements = dimensions.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension))?;
    (elements / block).checked_mul(ggml_type.block_bytes() as u64)
}

/// A name as it may stand in an error text: a hostile file's names are long and full of control characters.
pub(super) fn shorten(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
