//! This crate derives `portolan::Handover`, `portolan::rpc::Schema` and
//! `portolan::channel::Payload`, and expands the attribute `portolan::service`. Use them through
//! `portolan`, which documents them.

mod payload;
mod schema;
mod service;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::punctuated::Punctuated;
use syn::{
    Data, DeriveInput, Error, Fields, GenericParam, Ident, Lifetime, LifetimeParam, Token,
    parse_quote,
};

/// Implements `portolan::Handover`, and `portolan::structure::Root`, for a struct or enum.
///
/// The type may have one lifetime parameter, which stands for the arena that it lies in, and
/// type parameters. Bounds on them belong on functions, not on the type.
#[proc_macro_derive(Handover)]
pub fn handover(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Implements `portolan::rpc::Schema` for a struct or enum.
#[proc_macro_derive(Schema)]
pub fn schema(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    schema::expand(&input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Implements `portolan::channel::Plain`, and with it `Payload`, for a struct or enum.
#[proc_macro_derive(Payload)]
pub fn payload(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    payload::expand(&input)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

/// Makes client and server of a trait.
#[proc_macro_attribute]
pub fn service(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let nothing = syn::parse_macro_input!(arguments as syn::parse::Nothing);
    let _ = nothing;
    let item = syn::parse_macro_input!(item as syn::ItemTrait);
    service::expand(item)
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream, Error> {
    let arena = arena(input)?;
    let name = &input.ident;
    let text = name.to_string();
    let parts = parts(input, &arena)?;
    let krate = quote!(::portolan::structure);

    let mut generics = input.generics.clone();
    if generics.lifetimes().next().is_none() {
        let arena = LifetimeParam::new(arena.clone());
        generics.params.insert(0, GenericParam::Lifetime(arena));
    }
    let (drop_params, ours, drop_bounds) = input.generics.split_for_impl();
    for parameter in generics.type_params_mut() {
        parameter
            .bounds
            .push(parse_quote!(#krate::Handover<#arena>));
    }
    let (with_arena, _, bounds) = generics.split_for_impl();

    let mut roots = input.generics.clone();
    for parameter in roots.type_params_mut() {
        parameter.bounds.push(parse_quote!(#krate::Root));
    }
    let (root_params, _, root_bounds) = roots.split_for_impl();
    let elsewhere = Lifetime::new("'portolan", name.span());
    let at = elsewhere_arguments(input, &elsewhere, &krate);

    Ok(quote! {
        const _: () = {
            // SAFETY:
            // - every field is `Handover` in this arena, or `describe` would not compile;
            // - no `Drop`, or the two implementations of `NoDrop` would be in conflict;
            // - name, size, alignment and each field's name, place and type are described.
            #[automatically_derived]
            unsafe impl #with_arena #krate::Handover<#arena> for #name #ours #bounds {
                fn describe(to: &mut #krate::Describe) {
                    to.record::<Self>(#text, |to| { let _ = &to; #parts });
                }
            }

            #[automatically_derived]
            impl #root_params #krate::Root for #name #ours #root_bounds {
                type At<#elsewhere> = #name #at;
            }

            /// What is in an arena is never dropped, so a type that may lie there has no `Drop`.
            #[allow(dead_code)]
            trait NoDrop {}
            #[allow(drop_bounds, dead_code)]
            impl<T: ::core::ops::Drop + ?Sized> NoDrop for T {}
            #[allow(dead_code)]
            impl #drop_params NoDrop for #name #ours #drop_bounds {}
        };
    })
}

/// The lifetime that stands for the arena.
fn arena(input: &DeriveInput) -> Result<Lifetime, Error> {
    let mut lifetimes = input.generics.lifetimes();
    let first = lifetimes.next();
    if let Some(second) = lifetimes.next() {
        return Err(Error::new_spanned(
            second,
            "a type lies in one arena: it has one lifetime parameter, or none",
        ));
    }
    let own = || Lifetime::new("'portolan_arena", input.ident.span());
    Ok(first.map_or_else(own, |l| l.lifetime.clone()))
}

/// Statements that describe the fields.
fn parts(input: &DeriveInput, arena: &Lifetime) -> Result<TokenStream, Error> {
    match &input.data {
        Data::Struct(data) => Ok(fields(&data.fields, arena, true)),
        Data::Enum(data) => {
            let variants = data.variants.iter().map(|variant| {
                let name = variant.ident.to_string();
                // Where the fields of an enum lie cannot be asked on stable Rust; the
                // compiler is part of the description, and lays equal enums out equally.
                let fields = fields(&variant.fields, arena, false);
                quote!(to.text(#name); #fields)
            });
            Ok(quote!(#(#variants)*))
        }
        Data::Union(data) => Err(Error::new_spanned(
            data.union_token,
            "a union may not lie in an arena: nobody can say what its bytes mean",
        )),
    }
}

fn fields(fields: &Fields, arena: &Lifetime, places: bool) -> TokenStream {
    let described = fields.iter().enumerate().map(|(index, field)| {
        let member = match &field.ident {
            Some(name) => name.clone(),
            None => format_ident!("_{index}"),
        };
        let (text, ty) = (member.to_string(), &field.ty);
        let offset = match (&field.ident, places) {
            (Some(name), true) => quote!(::core::mem::offset_of!(Self, #name)),
            (None, true) => {
                let index = syn::Index::from(index);
                quote!(::core::mem::offset_of!(Self, #index))
            }
            (_, false) => quote!(0),
        };
        // In this arena, and no other: a field of another would point out of this one.
        quote! {
            to.place(#text, #offset);
            <#ty as ::portolan::structure::Handover<#arena>>::describe(to);
        }
    });
    quote!(#(#described)*)
}

/// The type's arguments in another arena.
fn elsewhere_arguments(
    input: &DeriveInput,
    elsewhere: &Lifetime,
    krate: &TokenStream,
) -> TokenStream {
    let mut arguments = Punctuated::<TokenStream, Token![,]>::new();
    for parameter in &input.generics.params {
        arguments.push(match parameter {
            GenericParam::Lifetime(_) => quote!(#elsewhere),
            GenericParam::Type(ty) => {
                let ident: &Ident = &ty.ident;
                quote!(<#ident as #krate::Root>::At<#elsewhere>)
            }
            GenericParam::Const(constant) => {
                let ident: &Ident = &constant.ident;
                quote!(#ident)
            }
        });
    }
    quote!(<#arguments>)
}
