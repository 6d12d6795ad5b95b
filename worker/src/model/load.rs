//! A weight file, mapped: named tensors used in place from the file's own pages.
//!
//! Nothing is copied out of a matrix: the page cache holds the only copy there is, it outlives the
//! process, and a recycled worker finds it warm. What is not checked here is that the file stays
//! as long as it was: a mapped page beyond a later end is SIGBUS, an exit of its own
//! (`WorkerExit::WeightsUnreadable`).
#![expect(unsafe_code, reason = "mapping the file; its block says why it is sound")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::format::BlockFormat;
use kernels::tensor::{ExpertsView, WeightView};
use memmap2::{Advice, Mmap, MmapOptions};
use nix::errno::Errno;
use shared::gguf::{Metadata, TensorInfo};

use super::parts::{self, Part, cannot_open, invalid};
use crate::engine::EngineError;

/// Bytes brought into memory between two calls of the progress callback.
const POPULATE_BYTES: usize = 16 << 20;

/// Bytes of each end of a tensor that go into the fingerprint.
const SAMPLE_BYTES: usize = 4096;

/// All parts of a model, mapped, with one directory of their tensors.
#[derive(Debug)]
pub(crate) struct WeightFile {
    /// Metadata of the first part.
    pub(crate) metadata: Metadata,
    parts: Vec<MappedPart>,
    directory: BTreeMap<String, Entry>,
    /// Byte ranges of parts that are read here and there, and never as a whole.
    scattered: Vec<(usize, std::ops::Range<usize>)>,
}

#[derive(Debug)]
struct MappedPart {
    path: PathBuf,
    map: Arc<Mmap>,
    data_offset: usize,
    header_digest: [u8; 32],
}

#[derive(Debug)]
struct Entry {
    part: usize,
    info: TensorInfo,
    is_taken: bool,
}

/// A weight matrix in the file's own pages.
#[derive(Debug, Clone)]
pub struct MappedMatrix {
    map: Arc<Mmap>,
    start: usize,
    size: usize,
    format: BlockFormat,
    rows: usize,
    cols: usize,
}

impl MappedMatrix {
    /// The matrix for a kernel.
    ///
    /// *Shapes*: `(rows, cols)`, that is `(n_out, n_in)`.
    #[must_use]
    pub fn view(&self) -> WeightView<'_> {
        let bytes = &self.map[self.start..self.start + self.size];
        WeightView::new(self.format, self.rows, self.cols, bytes)
            .expect("the same sizes were accepted when the tensor was loaded")
    }

    /// Number of rows, the outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// Where a tensor lies.
struct Tensor {
    map: Arc<Mmap>,
    path: PathBuf,
    start: usize,
    size: usize,
    format: BlockFormat,
}

impl Tensor {
    fn bytes(&self) -> &[u8] {
        &self.map[self.start..self.start + self.size]
    }
}

/// The matrices of all experts of a layer, in the file's own pages.
#[derive(Debug, Clone)]
pub struct MappedExperts {
    map: Arc<Mmap>,
    start: usize,
    size: usize,
    format: BlockFormat,
    n_experts: usize,
    /// Of one expert, as the file has them.
    rows: usize,
    cols: usize,
    /// The rows of each expert that count.
    part: std::ops::Range<usize>,
}

impl MappedExperts {
    /// The matrices for a kernel.
    ///
    /// *Shapes*: `(n_experts, rows, cols)`.
    #[must_use]
    pub fn view(&self) -> ExpertsView<'_> {
        let bytes = &self.map[self.start..self.start + self.size];
        let view = ExpertsView::new(self.format, self.n_experts, self.rows, self.cols, bytes)
            .expect("the same sizes were accepted when the tensor was loaded");
        view.part(self.part.start, self.part.len())
    }

    /// Only these rows of each expert: half of a tensor that holds gate and up.
    #[must_use]
    pub(crate) fn part(mut self, rows: std::ops::Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows of an expert");
        self.part = rows;
        self
    }
}

impl WeightFile {
    /// Opens and maps the file and, if it is split, its other parts.
    pub(crate) fn open(path: &Path) -> Result<Self, EngineError> {
        let parts = parts::open_all(path)?;
        let metadata = parts[0].header.metadata.clone();
        let mut file =
            Self { metadata, parts: Vec::new(), directory: BTreeMap::new(), scattered: Vec::new() };
        for part in parts {
            file.add(part)?;
        }
        Ok(file)
    }

    fn add(&mut self, part: Part) -> Result<(), EngineError> {
        let index = self.parts.len();
        let map = map(&part)?;
        let data_offset = usize::try_from(part.header.data_offset)
            .expect("the header was read, so it fits the address space");
        let header_digest = part.header.header_digest;
        for info in part.header.tensors {
            let name = info.name.clone();
            let entry = Entry { part: index, info, is_taken: false };
            if self.directory.insert(name.clone(), entry).is_some() {
                let what = format!("tensor `{name}` stands in an earlier part too");
                return Err(invalid(&part.path, what));
            }
        }
        let (path, map) = (part.path, Arc::new(map));
        self.parts.push(MappedPart { path, map, data_offset, header_digest });
        Ok(())
    }

    /// The first part's path, for messages about the model as a whole.
    pub(crate) fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// Digest of the first part's header.
    pub(crate) fn header_digest(&self) -> [u8; 32] {
        self.parts[0].header_digest
    }

    /// Digest of all headers and of both ends of each tensor. Whole weights are not read for it;
    /// another training or another quantization differs in these places too.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for part in &self.parts {
            hasher.update(&part.header_digest);
        }
        for entry in self.directory.values() {
            let part = &self.parts[entry.part];
            let (offset, size) = (entry.info.offset, entry.info.size);
            let in_memory = "the header was checked against the file, which was mapped whole";
            let start = part.data_offset + usize::try_from(offset).expect(in_memory);
            let bytes = &part.map[start..][..usize::try_from(size).expect(in_memory)];
            let sample = bytes.len().min(SAMPLE_BYTES);
            hasher.update(&bytes[..sample]).update(&bytes[bytes.len() - sample..]);
        }
        *hasher.finalize().as_bytes()
    }

    /// Bytes of all tensors.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.directory.values().map(|entry| entry.info.size).sum()
    }

    /// Elements of all tensors.
    pub(crate) fn parameters(&self) -> u64 {
        self.directory.values().map(|entry| entry.info.elements()).sum()
    }

    /// The sizes of a tensor, fastest first, if the file has it.
    pub(crate) fn dims(&self, name: &str) -> Option<&[u64]> {
        self.directory.get(name).map(|entry| entry.info.dims.as_slice())
    }

    /// The matrix of that name, which must be `(rows, cols)`.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<MappedMatrix, EngineError> {
        let tensor = self.tensor(name, &[cols as u64, rows as u64])?;
        WeightView::new(tensor.format, rows, cols, tensor.bytes())
            .map_err(|error| invalid(&tensor.path, format!("tensor `{name}`: {error}")))?;
        let Tensor { map, start, size, format, .. } = tensor;
        Ok(MappedMatrix { map, start, size, format, rows, cols })
    }

    /// The matrices of that name, which must be `(n_experts, rows, cols)`.
    pub(crate) fn experts(
        &mut self,
        name: &str,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<MappedExperts, EngineError> {
        let tensor = self.tensor(name, &[cols as u64, rows as u64, n_experts as u64])?;
        ExpertsView::new(tensor.format, n_experts, rows, cols, tensor.bytes())
            .map_err(|error| invalid(&tensor.path, format!("tensor `{name}`: {error}")))?;
        let Tensor { map, start, size, format, .. } = tensor;
        Ok(MappedExperts { map, start, size, format, n_experts, rows, cols, part: 0..rows })
    }

    /// Where a tensor of these sizes lies, fastest first. Sizes of 1 at the end may be left out.
    fn tensor(&mut self, name: &str, dims: &[u64]) -> Result<Tensor, EngineError> {
        let Some(entry) = self.directory.get_mut(name) else {
            return Err(invalid(self.path(), format!("tensor `{name}` is missing")));
        };
        entry.is_taken = true;
        let part = &self.parts[entry.part];
        let info = &entry.info;
        let n_dims = info.dims.len().max(dims.len());
        let dim = |dims: &[u64], index: usize| dims.get(index).copied().unwrap_or(1);
        if (0..n_dims).any(|index| dim(&info.dims, index) != dim(dims, index)) {
            let what = format!(
                "tensor `{name}` has the shape {:?}, but the model needs {dims:?}",
                info.dims
            );
            return Err(invalid(&part.path, what));
        }
        let Some(format) = BlockFormat::from_ggml_type(info.tensor_type.id()) else {
            return Err(invalid(&part.path, unsupported(name, info.tensor_type.name())));
        };
        let out_of_range = || invalid(&part.path, format!("tensor `{name}` is out of range"));
        let start = usize::try_from(info.offset).ok();
        let start = start.and_then(|offset| part.data_offset.checked_add(offset));
        let start = start.ok_or_else(out_of_range)?;
        let size = usize::try_from(info.size).map_err(|_| out_of_range())?;
        let end = start.checked_add(size).ok_or_else(out_of_range)?;
        part.map.get(start..end).ok_or_else(out_of_range)?;
        let (map, path) = (Arc::clone(&part.map), part.path.clone());
        Ok(Tensor { map, path, start, size, format })
    }

    /// Refuses a file with tensors that nothing asked for: a model with a part that this build
    /// does not compute would answer wrongly.
    pub(crate) fn check_all_taken(&self, arch: &str) -> Result<(), EngineError> {
        match self.directory.iter().find(|(_, entry)| !entry.is_taken) {
            None => Ok(()),
            Some((name, entry)) => Err(invalid(
                &self.parts[entry.part].path,
                format!("tensor `{name}` belongs to no `{arch}` model this build can compute"),
            )),
        }
    }

    /// Marks a tensor as known and not needed.
    pub(crate) fn ignore(&mut self, name: &str) {
        if let Some(entry) = self.directory.get_mut(name) {
            entry.is_taken = true;
        }
    }

    /// Names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.directory.keys().map(String::as_str)
    }

    /// Names and formats of all tensors.
    pub(crate) fn types(&self) -> impl Iterator<Item = (&str, &str)> {
        self.directory.iter().map(|(name, entry)| (name.as_str(), entry.info.tensor_type.name()))
    }

    /// Says that a tensor is read row by row, here and there: it is not brought into memory as a
    /// whole, and the kernel is told not to read ahead in it.
    pub(crate) fn scatter(&mut self, name: &str) {
        let Some(entry) = self.directory.get(name) else { return };
        let part = &self.parts[entry.part];
        let (Ok(offset), Ok(size)) =
            (usize::try_from(entry.info.offset), usize::try_from(entry.info.size))
        else {
            return;
        };
        let start = part.data_offset.saturating_add(offset).min(part.map.len());
        let end = start.saturating_add(size).min(part.map.len());
        // Advice: where it is not taken, reads are only slower.
        let _ = part.map.advise_range(Advice::Random, start, end - start);
        self.scattered.push((entry.part, start..end));
    }

    /// Brings tensor bytes into memory, all but the scattered ones, so that the first tokens do
    /// not wait for the disk.
    ///
    /// `progress` is told the bytes that are in, and the bytes in all.
    pub(crate) fn populate(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), EngineError> {
        let ranges: Vec<_> =
            (0..self.parts.len()).flat_map(|part| self.dense_ranges(part)).collect();
        let total = ranges.iter().map(|(_, range)| range.len() as u64).sum();
        let mut done = 0;
        progress(0, total);
        for (part, range) in ranges {
            let mut start = range.start;
            while start < range.end {
                let count = POPULATE_BYTES.min(range.end - start);
                populate_range(&self.parts[part], start, count)?;
                start += count;
                done += count as u64;
                progress(done, total);
            }
        }
        Ok(())
    }

    /// What of a part's tensor data is not scattered.
    fn dense_ranges(&self, part: usize) -> Vec<(usize, std::ops::Range<usize>)> {
        let mut holes: Vec<_> =
            self.scattered.iter().filter(|(p, _)| *p == part).map(|(_, r)| r.clone()).collect();
        holes.sort_by_key(|hole| hole.start);
        let mut ranges = Vec::new();
        let mut start = self.parts[part].data_offset;
        for hole in holes {
            ranges.push((part, start..hole.start.max(start)));
            start = start.max(hole.end);
        }
        ranges.push((part, start..self.parts[part].map.len().max(start)));
        ranges
    }
}

fn unsupported(name: &str, found: &str) -> String {
    let known: Vec<_> = BlockFormat::ALL.iter().map(|format| format.name()).collect();
    format!(
        "tensor `{name}` is stored as {found}, which this build cannot compute with (it can with \
         {})",
        known.join(", ")
    )
}

fn map(part: &Part) -> Result<Mmap, EngineError> {
    let length = usize::try_from(part.file_len)
        .map_err(|_| cannot_open(&part.path, "is larger than the address space"))?;
    // SAFETY: the mapping is read-only and shared, so this process never writes through it. That
    // nobody else changes the file while it is mapped is the operator's to uphold, and the READMEs
    // say so: a shorter file ends the process by SIGBUS, which has an exit of its own. Other bytes
    // are other weights, never unsound: every bit pattern is a valid `u8`, and kernels read
    // weights as bytes and index nothing by them.
    let map = unsafe { MmapOptions::new().len(length).map(&part.file) };
    map.map_err(|error| cannot_open(&part.path, format!("cannot be mapped: {error}")))
}

/// Bytes in from `start` on; touches them one by one where Linux is too old to be asked.
fn populate_range(part: &MappedPart, start: usize, count: usize) -> Result<(), EngineError> {
    match part.map.advise_range(Advice::PopulateRead, start, count) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {
            // A failure here costs speed only.
            let _ = part.map.advise_range(Advice::WillNeed, start, count);
            for at in (start..start + count).step_by(4096) {
                std::hint::black_box(part.map[at]);
            }
            Ok(())
        }
        Err(error) if error.raw_os_error() == Some(Errno::ENOMEM as i32) => {
            Err(EngineError::OutOfMemory {
                what: "the pages of the weight file".to_owned(),
                bytes: count as u64,
            })
        }
        Err(error) => Err(cannot_open(
            &part.path,
            format!(
                "{count} bytes from {start} on cannot be read (the file became shorter, or its \
                 disk fails): {error}"
            ),
        )),
    }
}
