//! Compares a checkpoint's tensors with those that its model needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::head::HeadTable;
use crate::layout::{ModelLayout, StoredTensor};
use crate::model::ModelSpec;
use crate::names::UnusedPart;
use crate::originals::NumberEdit;
use crate::quantization;
use crate::quantized_originals;
use crate::report::{CheckReport, TensorProblem, UnusedTensors};
use crate::tensor::{
    ElementType, FusedForm, FusedSource, TensorCut, TensorHeader, TensorHeaders, TensorRole,
    TensorSpec,
};
use jackalope_config::quantization::{QuantizationFormat, QuantizationMode};

impl ModelSpec {
    /// Returns every tensor that a checkpoint with these tensors must have.
    fn stored_tensors<'a>(
        &'a self,
        is_tied: bool,
        headers: &'a TensorHeaders,
    ) -> impl Iterator<Item = &'a TensorSpec> {
        self.tensors(is_tied).filter(|it| it.is_in(|name| headers.contains_key(name)))
    }

    /// Returns the tensors of the language model, by the names in this description.
    pub fn headers_of_model(&self, stored: &TensorHeaders) -> TensorHeaders {
        let mut named = self.names.headers_of_model(stored);
        if let Some(format) = self.quantization.original {
            named = quantized_originals::as_converted(format, named);
        }
        let Some(packed) = &self.packed else { return named };
        packed.unpacked(
            named,
            |header| &header.shape,
            |header, part| TensorHeader {
                shape: part.shape,
                element_type: header.element_type.clone(),
            },
        )
    }

    /// Compares the tensors of a checkpoint with those that the model needs.
    pub fn check(&self, headers: &TensorHeaders) -> CheckReport {
        self.layout(headers).err().unwrap_or_default()
    }

    /// Returns the part of a checkpoint that a tensor belongs to which the model does not use; `None`
    /// if it may use the tensor.
    pub fn unused_part(&self, stored: &str) -> Option<UnusedPart> {
        let Some(name) = self.names.of_model(stored) else { return self.names.unused_part(stored) };
        // Multi-token prediction (MTP) layers follow the last layer.
        self.is_unused(&name).then_some(UnusedPart::Prediction)
    }

    fn is_unused(&self, name: &str) -> bool {
        let mut prefixes = self.unused.iter().chain(&self.unstated_prediction);
        prefixes.any(|prefix| name.starts_with(prefix))
    }

    /// Returns the tensors of the layer behind the last one if it does not predict tokens: then
    /// `config.json` states too few layers.
    fn layer_too_many(&self, headers: &TensorHeaders) -> Vec<String> {
        let Some(prefix) = &self.unstated_prediction else { return Vec::new() };
        let names = headers.keys().filter(|name| name.starts_with(prefix));
        let names: Vec<String> = names.cloned().collect();
        let is_own = |name: &String| {
            let name = &name[prefix.len()..];
            ["eh_proj.", "enorm.", "hnorm."].iter().any(|own| name.starts_with(own))
        };
        if names.iter().any(is_own) { Vec::new() } else { names }
    }

    /// Returns the tensors of a checkpoint that the model does not use, by the part that they belong
    /// to.
    pub fn unused_tensors(&self, headers: &TensorHeaders) -> Vec<UnusedTensors> {
        let mut found: BTreeMap<UnusedPart, UnusedTensors> = BTreeMap::new();
        for (name, header) in headers {
            let Some(part) = self.unused_part(name) else { continue };
            let sum = found.entry(part).or_insert(UnusedTensors { part, count: 0, bytes: 0 });
            sum.count += 1;
            sum.bytes += header.num_bytes();
        }
        found.into_values().collect()
    }

    /// Compares the names of a checkpoint's tensors with those that the model needs, before their
    /// shapes are known. Returns missing and unexpected tensors only.
    pub fn check_names<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> CheckReport {
        let unknown = TensorHeader { element_type: ElementType::F32, shape: Vec::new() };
        let headers = names.into_iter().map(|name| (name.to_owned(), unknown.clone())).collect();
        let is_of_names = |problem: &TensorProblem| {
            matches!(problem, TensorProblem::Missing { .. } | TensorProblem::Unexpected { .. })
        };
        let problems = self.check(&headers).problems.into_iter().filter(is_of_names).collect();
        CheckReport { problems }
    }

    /// Returns the layout of the model in a checkpoint with these tensors.
    ///
    /// # Errors
    /// Fails with every tensor that is missing, unexpected or of another shape or type.
    pub fn layout(&self, headers: &TensorHeaders) -> Result<ModelLayout, CheckReport> {
        let unused = self.unused_tensors(headers);
        let stored_headers = headers;
        let headers = &self.headers_of_model(headers);
        let mut check = Check { headers, used: BTreeSet::new(), problems: Vec::new() };
        let is_tied = match self.head_table {
            HeadTable::Tied => true,
            HeadTable::Own => false,
            HeadTable::IfPresent => !headers.contains_key(&self.head.name),
        };
        let norm = check.find(&self.norm);
        let stored: Vec<StoredTensor<'_>> =
            self.stored_tensors(is_tied, headers).map(|spec| check.tensor(self, spec)).collect();
        let used = &check.used;
        // Frequencies that old exporters stored, and the second copy of a tied table, are not
        // needed.
        let head = format!("{}.", self.head.module());
        let is_unneeded = |name: &str| {
            name.ends_with(".inv_freq")
                || (is_tied && name.starts_with(&head))
                || self.is_unused(name)
        };
        let names = headers.keys().filter(|name| !used.contains(*name) && !is_unneeded(name));
        let mut names: Vec<String> = names.cloned().collect();
        names.extend(self.layer_too_many(headers));
        if !names.is_empty() {
            let model_type = self.model_type.clone();
            check.problems.push(TensorProblem::Unexpected { model_type, names });
        }
        let numbers = self.original_numbers.as_ref();
        let edits = numbers.map(|it| it.edits(&self.names, stored_headers, headers));
        let edits = edits.unwrap_or_default();
        check.problems.extend(quantized_edits(&edits, headers));
        match norm {
            Some(norm) if check.problems.is_empty() => {
                let layout = ModelLayout::new(self, norm.element_type.clone(), is_tied, &stored);
                let mut layout = layout.with_edits(edits);
                layout.unused = unused;
                Ok(layout)
            }
            _ => Err(CheckReport { problems: check.problems }),
        }
    }
}

/// Returns the quantised matrices whose numbers loading would have to multiply. No conversion has any: they are
/// multiplied before they are quantised.
fn quantized_edits(
    edits: &BTreeMap<String, NumberEdit>,
    headers: &TensorHeaders,
) -> Vec<TensorProblem> {
    let multiplied = edits.iter().filter(|(_, edit)| matches!(edit, NumberEdit::Multiply(_)));
    let modules = multiplied.map(|(name, _)| module_of(name));
    let quantized = modules.filter(|it| headers.contains_key(&format!("{it}.scales")));
    let problem = |module: &str| TensorProblem::Quantization {
        module: module.to_owned(),
        found: "codes and scales".to_owned(),
        expected: "floats: config.json has factors for this matrix of an original".to_owned(),
    };
    quantized.map(problem).collect()
}

impl TensorSpec {
    /// Returns the name of the module that the tensor belongs to.
    pub fn module(&self) -> &str {
        self.name.rsplit_once('.').map_or(&self.name, |(module, _)| module)
    }
}

/// Returns the module of a matrix from the name of its weight.
fn module_of(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

/// Formats a format for an error.
fn describe(format: Option<QuantizationFormat>) -> String {
    format.map_or("nothing".to_owned(), |format| format.to_string())
}

/// Whether two shapes differ at most in dimensions of one, so that their elements have the same
/// order: original checkpoints have the kernels of convolutions and some numbers in this way.
fn is_same_shape(found: &[usize], expected: &[usize]) -> bool {
    let lengths =
        |shape: &[usize]| -> Vec<usize> { shape.iter().copied().filter(|dim| *dim != 1).collect() };
    found == expected || lengths(found) == lengths(expected)
}

/// A comparison in progress.
struct Check<'a> {
    headers: &'a TensorHeaders,
    used: BTreeSet<String>,
    problems: Vec<TensorProblem>,
}

/// A tensor that a checkpoint must have.
struct Expected<'a> {
    name: String,
    shape: Vec<usize>,
    /// Whether its elements may be of a type.
    is_type: fn(&ElementType) -> bool,
    /// The types, as an error names them.
    types: &'a str,
}

const FLOATS: &str = "F32, F16 or BF16";

impl<'a> Check<'a> {
    /// Returns the header of a tensor, whatever it holds.
    fn find(&self, spec: &TensorSpec) -> Option<&'a TensorHeader> {
        self.headers.get(&spec.name)
    }

    /// Compares one tensor of the model, with the scales and biases beside it.
    fn tensor<'s>(&mut self, model: &ModelSpec, spec: &'s TensorSpec) -> StoredTensor<'s> {
        let mut stored = StoredTensor { spec, format: None, num_bytes: 0 };
        let has = |name: &str| self.headers.contains_key(name);
        if let Some(source) = spec.fused_in(has) {
            (stored.format, stored.num_bytes) = self.fused(spec, source);
            return stored;
        }
        let each = spec
            .per_expert
            .as_ref()
            .filter(|[before, after]| !has(&spec.name) && has(&format!("{before}0{after}")));
        let Some([before, after]) = each else {
            self.piece(model, &mut stored, &spec.name, &spec.shape);
            return stored;
        };
        let mut first = None;
        for expert in 0..spec.shape[0] {
            let name = format!("{before}{expert}{after}");
            let is_there = self.headers.contains_key(&name);
            self.piece(model, &mut stored, &name, &spec.shape[1..]);
            let expected = *first.get_or_insert(stored.format);
            if stored.format != expected {
                let (found, expected) = (describe(stored.format), describe(expected));
                let module = module_of(&name).to_owned();
                self.problems.push(TensorProblem::Quantization { module, found, expected });
            }
            if !is_there {
                // One missing expert says enough, however many config.json names.
                break;
            }
            self.same_types(&format!("{before}0{after}"), &name);
        }
        stored
    }

    /// Compares the element types of the tensors of one part of a stack with those of the first part:
    /// a stack has one type, and is read without converting elements.
    fn same_types(&mut self, first: &str, name: &str) {
        let tensors = |name: &str| {
            let module = module_of(name);
            [name.to_owned(), format!("{module}.scales"), format!("{module}.biases")]
        };
        for (first, name) in tensors(first).into_iter().zip(tensors(name)) {
            let (first, found) = (self.headers.get(&first), self.headers.get(&name));
            if let (Some(first), Some(found)) = (first, found)
                && first.element_type != found.element_type
            {
                let found = found.element_type.name().to_owned();
                let expected = "the type that the first tensor of the same stack has";
                self.problems.push(TensorProblem::ElementType { name, found, expected });
            }
        }
    }

    /// Compares a tensor that has a projection of all experts with another one. Returns its format
    /// and the projection's part of the bytes.
    fn fused(
        &mut self,
        spec: &TensorSpec,
        source: &FusedSource,
    ) -> (Option<QuantizationFormat>, u64) {
        let mut shape = spec.shape.clone();
        shape[1] *= source.num_projections;
        let part = source.num_projections as u64;
        let expected = |tensor: &str, shape: Vec<usize>, is_type, types| Expected {
            name: source.name(tensor),
            shape,
            is_type,
            types,
        };
        let is_float: fn(&ElementType) -> bool = ElementType::is_float;
        if !spec.is_quantizable {
            return (None, self.expect(expected("bias", shape, is_float, FLOATS)) / part);
        }
        if source.form != FusedForm::Blocks {
            if source.form == FusedForm::Columns {
                shape.swap(1, 2);
            }
            return (None, self.expect(expected("weight", shape, is_float, FLOATS)) / part);
        }
        let is_u8: fn(&ElementType) -> bool = |it| *it == ElementType::U8;
        shape[2] /= FusedSource::GROUP;
        let scales = expected("scales", shape.clone(), is_u8, "U8");
        shape.push(FusedSource::GROUP / 2);
        let codes = expected("weight", shape, is_u8, "U8");
        let num_bytes = self.expect(scales) + self.expect(codes);
        let format = QuantizationFormat {
            mode: QuantizationMode::Mxfp4,
            bits: 4,
            group_size: FusedSource::GROUP as u32,
        };
        (Some(format), num_bytes / part)
    }

    /// Compares a tensor of the checkpoint, which is all or one expert's part of a tensor of the
    /// model.
    fn piece(
        &mut self,
        model: &ModelSpec,
        stored: &mut StoredTensor<'_>,
        name: &str,
        shape: &[usize],
    ) {
        let shape = &self.stored_shape(stored.spec, name, shape);
        match self.format(model, stored.spec, name, shape) {
            Ok(format) => {
                stored.format = format;
                stored.num_bytes += self.stored_bytes(name, shape, format, stored.spec.role);
            }
            Err(problem) => {
                self.claim(name);
                self.problems.push(problem);
            }
        }
    }

    /// Returns the shape that a tensor of this name is expected to have in the file: a stack
    /// `[count, rows, columns]` may also be stored as `[count * rows, columns]`.
    fn stored_shape(&self, spec: &TensorSpec, name: &str, shape: &[usize]) -> Vec<usize> {
        let is_one = self.headers.get(name).is_some_and(|header| header.shape.len() == 2);
        match (&spec.cut, shape) {
            (TensorCut::Stack(_), &[count, rows, columns]) if is_one => vec![count * rows, columns],
            _ => shape.to_vec(),
        }
    }

    fn format(
        &self,
        model: &ModelSpec,
        spec: &TensorSpec,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<QuantizationFormat>, TensorProblem> {
        let (true, Some(&input)) = (spec.is_quantizable, shape.last()) else { return Ok(None) };
        let module = module_of(name);
        quantization::format(&model.quantization, self.headers, module, input)
    }

    /// Counts all tensors of a module as used, because the module has a problem already.
    fn claim(&mut self, name: &str) {
        let module = module_of(name);
        for part in ["weight", "scales", "biases"] {
            self.used.insert(format!("{module}.{part}"));
        }
    }

    /// Checks the tensors of a matrix or vector, and returns their size.
    fn stored_bytes(
        &mut self,
        name: &str,
        shape: &[usize],
        format: Option<QuantizationFormat>,
        role: TensorRole,
    ) -> u64 {
        let named = |name: String, shape: Vec<usize>, is_type, types| Expected {
            name,
            shape,
            is_type,
            types,
        };
        let is_float: fn(&ElementType) -> bool = ElementType::is_float;
        let Some(format) = format else {
            let (is_type, types): (fn(&ElementType) -> bool, _) = match role {
                TensorRole::RouterTable => (|it| *it == ElementType::I32, "I32"),
                _ => (is_float, FLOATS),
            };
            return self.expect(named(name.to_owned(), shape.to_vec(), is_type, types));
        };
        let (module, input) = (module_of(name), shape[shape.len() - 1]);
        let with_last = |last: usize| {
            let mut dims = shape[..shape.len() - 1].to_vec();
            dims.push(last);
            dims
        };
        let is_u32: fn(&ElementType) -> bool = |it| *it == ElementType::U32;
        let is_u8: fn(&ElementType) -> bool = |it| *it == ElementType::U8;
        let words = with_last(format.words_per_row(input));
        let groups = with_last(format.groups_per_row(input));
        let scales = format!("{module}.scales");
        let weight = self.expect(named(name.to_owned(), words, is_u32, "U32"));
        if format.mode != QuantizationMode::Affine {
            return weight + self.expect(named(scales, groups, is_u8, "U8"));
        }
        let biases = format!("{module}.biases");
        weight
            + self.expect(named(scales, groups.clone(), is_float, FLOATS))
            + self.expect(named(biases, groups, is_float, FLOATS))
    }

    /// Checks one tensor, and returns its size; 0 if it is not as expected.
    fn expect(&mut self, expected: Expected<'static>) -> u64 {
        let Expected { name, shape, is_type, types } = expected;
        // A tensor that several of the model lie in has its problem once.
        let is_first = self.used.insert(name.clone());
        let problem = match self.headers.get(&name) {
            None => TensorProblem::Missing { name, shape },
            Some(header) if !is_same_shape(&header.shape, &shape) => {
                TensorProblem::Shape { name, found: header.shape.clone(), expected: shape }
            }
            Some(header) if !is_type(&header.element_type) => {
                let found = header.element_type.name().to_owned();
                TensorProblem::ElementType { name, found, expected: types }
            }
            Some(header) => return header.num_bytes(),
        };
        if is_first {
            self.problems.push(problem);
        }
        0
    }
}
