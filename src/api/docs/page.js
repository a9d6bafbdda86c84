SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  // The default asks a service on the internet whether the description is valid.
  validatorUrl: null,
});
